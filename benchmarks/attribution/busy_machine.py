"""Tests that on a busy machine commprof names no rank and finds two equal runs equal.

    PYTHONPATH=. python benchmarks/attribution/busy_machine.py --results busy_machine.jsonl

Trains a symmetric job twice, one run after the other. Meanwhile two other processes keep two cores
busy. There are 20 pairs of runs with 2 ranks and 20 pairs with 4 ranks. No rank is at fault, so the
report of a pair's first run must name no rank. The two runs of a pair are equal, so `commprof
compare` must find no difference. At a level of 5 %, chance alone makes 2 of 40 pairs differ. Pairs
in the results file are not repeated. Prints a line per demand, and exits with 1 if a demand is not
met.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows

PAIRS, RANKS = 20, (2, 4)
WANTED, LEAST = PAIRS * len(RANKS), PAIRS * len(RANKS) - 2
STEPS, WORKLOAD = 40, "mlp"
#: Number of busy processes that run next to the job.
LOAD = 2
_BUSY = "while True: pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs for each number of ranks")
    parser.add_argument("--minutes", type=float, default=9, help="time limit for new pairs")
    parser.add_argument("--results", type=Path, help="JSON lines; earlier pairs are not repeated")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    rows, kept = read_rows(args.results), Lines(args.results)
    done = {(row["ranks"], row["pair"]) for row in rows}
    with _busy():
        for pair, ranks in ((pair, ranks) for pair in range(args.pairs) for ranks in RANKS):
            if (ranks, pair) in done or time.monotonic() > end:
                continue
            rows.append({"ranks": ranks, "pair": pair, **_pair(ranks)})
            kept.append(rows[-1])
            print(rows[-1], flush=True)
    return judged(demands(rows))


def demands(rows: list[dict[str, Any]]) -> list[Demand]:
    """Checks that no rank is named, and that few pairs of equal runs differ."""
    nobody = sum("named" not in row for row in rows)
    steps = sum(not row["step_changed"] for row in rows)
    all_equal = sum(not row["step_changed"] and not row["changed"] for row in rows)
    return [
        of_all(
            "clean runs, on a busy machine, in which no rank is named", nobody, len(rows), 40, 38
        ),
        of_all("pairs of equal runs whose steps compare as equal", steps, len(rows), 40, 38),
        of_all(
            "pairs of equal runs whose steps, parts of steps and collectives all compare as equal",
            all_equal,
            len(rows),
            40,
            38,
        ),
    ]


@contextmanager
def _busy() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(LOAD)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def _pair(ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="commprof-busy-") as directory:
        return judge([_trained(Path(directory) / side, ranks) for side in "ab"])


def judge(runs: list[Path]) -> dict[str, Any]:
    """Returns the late rank that the first run's report names, and the comparison of the runs."""
    from commprof.analysis.compare import compare_runs
    from commprof.analysis.run import analyse_in_detail

    first, second = map(analyse_in_detail, runs)
    (world,) = compare_runs(("a", "b"), first, second).worlds
    late = first[0].worlds[0].lateness.late_rank
    row: dict[str, Any] = {
        "step_ms": [world.step.a_ms, world.step.b_ms],
        "p_value": world.step.p_value,
        "effective_steps": list(world.effective_steps),
        "no_core_share": list(world.no_core_share),
        "step_changed": world.step.significant,
        "changed": [
            each.name for each in (*world.parts[1:], *world.collectives) if each.significant
        ],
    }
    if late is not None:
        row.update(named=late.rank, phase=late.phase, late_p_value=late.p_value)
    return row


def _trained(directory: Path, ranks: int) -> Path:
    from commprof.launch.job import Job
    from tests.support.machines.ranks import run_module

    directory.mkdir()
    job = Job(WORKLOAD, ranks, directory, steps=STEPS, hook=False)
    job.save(directory / "job.json")
    run_module("commprof.launch.worker", [str(directory / "job.json")], ranks)
    return directory


if __name__ == "__main__":
    sys.exit(main())
