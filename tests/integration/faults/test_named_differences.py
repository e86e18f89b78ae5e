from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commprof import _native
from commprof.analysis.late.dumped_diagnosis import Diagnosis
from commprof.analysis.late.dumped_hang import diagnosis
from commprof.analysis.late.incidents import read_hangs
from commprof.monitor.watchdog.py_spy import find_py_spy
from commprof.monitor.watchdog.tasks import HangTask, Log, MismatchTask, WatchTask
from commprof.monitor.watchdog.thresholds import Threshold
from commprof.monitor.watchdog.watchdog import WatchedJob
from tests.support.machines.fork_server import Forked

pytestmark = pytest.mark.skipif(_native.native is None, reason="needs the C++ module")

_SCRIPT = Path(__file__).parents[2] / "support/scripts/hanging.py"
_LINES = {
    name: number
    for number, line in enumerate(_SCRIPT.read_text().splitlines(), 1)
    if (name := line.partition("# line: ")[2])
}
_THRESHOLD_S = 1.0
_PATIENCE_S = 60.0


class Case(NamedTuple):
    watched: str
    dumped: str
    #: ``odd`` names the line of the rank at fault, ``others`` the line of the ranks that wait.
    odd: str
    others: str
    #: ``last`` names the line of the last call in the dump of the rank at fault, if no call is
    #: pending in that dump.
    last: str = ""
    guilty: int | None = None


CASES = {
    "sleeping": Case("absent", "absent", "sleeps", "backward", "gather"),
    "stopped": Case("held up", "undumped", "stops", "backward"),
    "raising": Case("absent", "absent", "", "backward", "gather"),
    "done early": Case("absent", "absent", "sleeps", "backward", "gather"),
    "fewer batches": Case("mismatch", "mismatch", "end", "backward"),
    "skipped layer": Case("circle", "circle", "first", "backward"),
    "circle": Case("circle", "circle", "second first", "first"),
    "message": Case("circle", "absent", "gather", "send"),
    "other operation": Case("mismatch", "mismatch", "barrier", "gather"),
    "other size": Case("mismatch", "mismatch", "larger", "large"),
    "skipped call": Case("mismatch", "mismatch", "next", "gather"),
    "ahead": Case("mismatch", "mismatch", "again", "backward"),
    "rank 0 only": Case("mismatch", "mismatch", "evaluation", "gather", guilty=0),
}
_FEW = [("sleeping", 3, "always-on"), ("message", 3, "full"), ("other size", 2, "full")]
_ALWAYS_ON = ("sleeping", "raising", "fewer batches", "circle", "message", "other size")
STUDY = [
    *((case, 2 + place % 3, "full") for place, case in enumerate(CASES)),
    *((case, 2 + (place + 1) % 3, "always-on") for place, case in enumerate(_ALWAYS_ON)),
]


@dataclass
class Found:
    hang: dict[str, Any]
    dumped: Diagnosis
    reported: str


def hung(folder: Path, case: str, ranks: int, guilty: int, mode: str, step: int = 4) -> Found:
    (folder / "dumps").mkdir()
    traces = folder / "traces"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COMMPROF")}
    added = {"COMMPROF_OUT": str(traces), "COMMPROF_MODE": mode, "TORCH_FR_BUFFER_SIZE": "2000"}
    environment = {**kept, **added, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # unused: the store is a file
    words = ["-m", "commprof.wrap", str(_SCRIPT), case, str(guilty), str(step), str(folder)]
    started = [
        Forked(words, {**environment, **address, "RANK": str(r), "LOCAL_RANK": str(r)}, folder)
        for r in range(ranks)
    ]
    log = Log(folder, quiet=True)

    def tasks(directory: Path) -> list[WatchTask]:
        differing = MismatchTask(log)
        return [differing, HangTask(directory, Threshold(_THRESHOLD_S), log, differing.known)]

    end = time.monotonic() + _PATIENCE_S
    job = WatchedJob(traces, tasks)
    try:
        while len([*folder.glob("there_*")]) < ranks:
            assert time.monotonic() < end, [process.output() for process in started]
            time.sleep(0.05)
        while not [*traces.glob("hang_1.json")]:
            assert time.monotonic() < end, [process.output() for process in started]
            job.search()
            job.poll(time.monotonic_ns())
            time.sleep(0.1)
        (folder / "dump_now").touch()
        dumping = ranks - (case == "stopped")
        while len([*(folder / "dumps").glob("rank_*")]) < dumping:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        for process in started:
            process.kill()
            process.wait()
        job.end()
    (reported,) = read_hangs(traces)
    hang = json.loads((traces / "hang_1.json").read_text())
    return Found(hang, diagnosis(folder / "dumps"), reported.sentence)


def line(name: str) -> str:
    return f"{_SCRIPT.name}:{_LINES[name]}"


def told(text: str) -> set[str]:
    return {*re.findall(rf"{_SCRIPT.name}:\d+", text)}


@pytest.mark.parametrize(
    ("case", "ranks", "mode"),
    [pytest.param(*one, marks=() if one in _FEW else pytest.mark.slow) for one in STUDY],
)
def test_rank_difference_and_both_lines_of_a_hang_are_named(
    tmp_path: Path, case: str, ranks: int, mode: str
) -> None:
    assert {*_FEW} <= {*STUDY}
    expected = CASES[case]
    guilty = ranks // 2 if expected.guilty is None else expected.guilty
    found = hung(tmp_path, case, ranks, guilty, mode)
    sentence = found.hang["sentence"]
    assert found.reported == sentence
    assert "network" not in sentence
    assert (found.hang["kind"], found.hang["accused"][0]["rank"]) == (expected.watched, guilty)
    assert len(found.hang["accused"]) == 1
    if find_py_spy():
        lines = {line(name) for name in (expected.odd, expected.others) if name}
        if (case, mode) == ("other size", "always-on"):
            # The calls of different size have completed with wrong values, so the ranks hang in
            # their next calls.
            lines = {line("larger"), line("gather")}
        assert told(sentence) == lines
        assert case != "raising" or f"rank {guilty}: left its script" in sentence
    if expected.watched in ("mismatch", "circle"):
        differs = "the majority" if ranks > 2 and case != "message" else "its own earlier steps"
        assert f"; rank {guilty} differs from {differs} (" in sentence
    check_dumps(found.dumped, expected, case, ranks, guilty)


def check_dumps(found: Diagnosis, expected: Case, case: str, ranks: int, guilty: int) -> None:
    text = " ".join([found.sentence, *(one.why for one in found.culprits)])
    assert found.kind == expected.dumped
    if case == "message":  # gloo's dumps have no sends and receives
        peer = (guilty + 1) % ranks
        assert [one.rank for one in found.culprits] == [peer]
        assert f"it is not known whether rank {peer} waits in a send or recv" in found.sentence
        return
    assert [one.rank for one in found.culprits] == [guilty]
    assert "network" not in text
    if case == "stopped":
        assert told(text) == {line(expected.others)}
    else:
        assert told(text) == {line(expected.last or expected.odd), line(expected.others)}
    if expected.dumped in ("mismatch", "circle"):
        differs = "the majority" if ranks > 2 else "its own earlier steps"
        assert f"; rank {guilty} differs from {differs}" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("case", ["other operation", "circle"])
def test_two_ranks_that_differ_in_their_first_step_accuse_nobody(tmp_path: Path, case: str) -> None:
    found = hung(tmp_path, case, 2, 1, "full", step=0)
    for sentence in (found.hang["sentence"], found.dumped.sentence):
        assert re.search("which .* cannot be told", sentence)
        assert "network" not in sentence
    assert (found.hang["kind"], found.dumped.culprits) == (CASES[case].watched, ())
    expected = CASES[case]
    both = {line(expected.odd), line(expected.others)}
    assert told(found.dumped.sentence) == both
    if find_py_spy():
        assert told(found.hang["sentence"]) == both
