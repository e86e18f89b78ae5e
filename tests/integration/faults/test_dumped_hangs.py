"""Real hangs of gloo, diagnosed from dumps of torch's own Flight Recorder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commprof.analysis.late.dumped_hang import Diagnosis, diagnosis
from tests.support.machines.fork_server import Forked

_RANK = str(Path(__file__).parents[2] / "support/ranks/hung_gloo_rank.py")

#: Cause, number of ranks, and rank at fault, for the default test run.
FEW = [("busy", 3, 1), ("chain", 3, 2)]
STUDY = [
    *[("absent", ranks, guilty) for ranks in (2, 3, 4) for guilty in (0, ranks - 1)],
    *[("busy", 2, 0), ("busy", 3, 1), ("busy", 4, 1), ("busy", 4, 2)],
    *[("mismatch", 3, 1), ("mismatch", 3, 2), ("mismatch", 4, 2), ("mismatch", 4, 3)],
    *[("chain", 2, 1), ("chain", 3, 2), ("chain", 4, 3)],
    *[("circle", 2, 0), ("circle", 3, 1), ("circle", 4, 3)],
]


def hang(folder: Path, cause: str, ranks: int, guilty: int) -> Diagnosis:
    started = [
        Forked([_RANK, str(folder), *map(str, (rank, ranks, cause, guilty))], os.environ)
        for rank in range(ranks)
    ]
    try:
        for process in started:
            process.wait(120)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return diagnosis(folder)


def check(found: Diagnosis, cause: str, ranks: int, guilty: int) -> None:
    kind = "absent" if cause in ("busy", "chain") else cause
    expected = list(range(ranks)) if cause == "circle" else [guilty]
    assert (found.kind, [one.rank for one in found.culprits]) == (kind, expected)


@pytest.mark.parametrize(
    ("cause", "ranks", "guilty"),
    [pytest.param(*one, marks=() if one in FEW else pytest.mark.slow) for one in STUDY],
)
def test_the_cause_and_culprit_of_a_gloo_hang_are_found_from_its_dumps(
    tmp_path: Path, cause: str, ranks: int, guilty: int
) -> None:
    assert len(STUDY) == 20
    check(hang(tmp_path, cause, ranks, guilty), cause, ranks, guilty)
