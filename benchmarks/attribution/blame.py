"""Tests if the report finds the rank and the cause of waiting in jobs with one known cause.

    PYTHONPATH=. python benchmarks/attribution/blame.py --results blame.jsonl

Runs the 60 scenarios of ``tests/support/builders/blame.py``. Each scenario runs on two to four gloo
ranks of this machine. The ranks compute in half of the scenarios, and sleep in the other half. The
scenarios with a throttled rank need cgroup v1 and root; without them these scenarios are left out.
The test ignores waiting for a rank that lacks a core, except in the scenarios with a throttled
rank. Scenarios in the results file are not repeated. Prints a line per scenario and a line per
demand. Exits with 1 if a demand is not met.

``--clean 10`` runs ten symmetric jobs of two ranks instead, next to ``--load`` busy loops. It
counts the jobs in which the report names no rank.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows

_STEPS = 14
#: Least number of scenarios with the right cause; the rank must be right in all scenarios.
_CAUSES = 56
_BUSY = "while True: pass"
_Rows = list[dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="JSON lines; earlier runs are not repeated")
    parser.add_argument("--minutes", type=float, default=12, help="time limit for new batches")
    parser.add_argument("--clean", type=int, default=0, help="number of symmetric jobs")
    parser.add_argument("--load", type=int, default=2, help="busy loops next to --clean's jobs")
    args = parser.parse_args()
    if args.clean:
        return _clean(args.clean, args.load)
    end = time.monotonic() + 60 * args.minutes
    rows, kept = read_rows(args.results), Lines(args.results)
    done = {(row["shape"], row["seed"]) for row in rows}
    for batch in _batches(done):
        if time.monotonic() > end:
            break
        for row in _run(batch):
            print(_line(row), flush=True)
            rows.append(row)
            kept.append(row)
    return judged(demands(rows))


def demands(rows: _Rows) -> list[Demand]:
    """Checks the demands on ranks, causes, and the sum of costs."""
    ranks, causes, adds = (sum(row[name] for row in rows) for name in ("rank", "cause", "adds_up"))
    return [
        of_all("jobs in which the right rank is found", ranks, len(rows), 60),
        of_all("jobs in which the right cause is found", causes, len(rows), 60, _CAUSES),
        of_all("jobs whose costs add up to all waiting", adds, len(rows), 60),
    ]


def _batches(done: set[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    """Returns batches of scenarios; the scenarios of a batch run in the same processes."""
    from tests.support.builders.blame import SCENARIOS, job

    batches: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for shape, seed in SCENARIOS:
        if (shape, seed) not in done and (shape != "throttled" or _can_throttle()):
            batches.setdefault((seed, job(shape, seed).size), []).append((shape, seed))
    return list(batches.values())


def _can_throttle() -> bool:
    probe = Path("/sys/fs/cgroup/cpu/commprof-blame-probe")
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _run(batch: list[tuple[str, int]]) -> _Rows:
    from tests.support.builders.blame import job
    from tests.support.machines.ranks import run_module

    jobs = [job(shape, seed, _STEPS) for shape, seed in batch]
    told = [
        {
            "groups": of.groups,
            "steps": of.steps,
            "computes": seed % 2 == 1,
            "floats_per_ms": 100_000,
        }
        for of, (_, seed) in zip(jobs, batch, strict=True)
    ]
    with tempfile.TemporaryDirectory(prefix="commprof-blame-") as directory:
        listed = Path(directory) / "jobs.json"
        listed.write_text(json.dumps(told))
        run_module("benchmarks.ranks.blame_rank", [str(listed), directory], jobs[0].size)
        return [
            _judge(shape, seed, of, Path(directory) / str(number))
            for number, (of, (shape, seed)) in enumerate(zip(jobs, batch, strict=True))
        ]


def _judge(shape: str, seed: int, of: Any, directory: Path) -> dict[str, Any]:
    import numpy as np

    from commprof.analysis.step.exposure import CAUSES, NO_CORE
    from commprof.analysis.step.measured import measured_world
    from commprof.analysis.world import world_result
    from commprof.trace.reader import read_trace
    from commprof.trace.run.run_directory import WorldRun

    traces = {rank: read_trace(directory / f"rank_{rank}.trace") for rank in range(of.size)}
    run = WorldRun(of.size, directory, {}, traces, ())
    seen = measured_world(run)
    assert seen is not None
    caused = np.sum([part.caused_ns.sum(axis=0) for part in seen.measured], axis=0)
    waited = sum(float(np.nansum(part.wait_ns)) for part in seen.measured)
    adds_up = abs(caused.sum() - waited) <= 1e-9 * waited + 1
    if of.cause != NO_CORE:  # with more ranks than cores, each rank lacks a core now and then
        caused[:, CAUSES.index(NO_CORE)] = 0
    by_rank = caused.sum(axis=1)
    top = np.argsort(-by_rank, kind="stable")[: len(of.ranks)].tolist()
    cause = CAUSES[int(caused[list(of.ranks)].sum(axis=0).argmax())]
    late = world_result(run, seen).lateness.late_rank
    return {
        "shape": shape,
        "seed": seed,
        "ranks": sorted(of.ranks),
        "found": top,
        "share": float(by_rank[top].sum() / max(1.0, by_rank.sum())),
        "wanted": of.cause,
        "found_cause": cause,
        "named": late and late.rank,
        "rank": set(top) == set(of.ranks),
        "cause": cause == of.cause,
        "adds_up": bool(adds_up),
    }


def _line(row: dict[str, Any]) -> str:
    wrong = "" if row["rank"] and row["cause"] else "  WRONG"
    return (
        f"{row['shape']:<16} {row['seed']}  ranks {row['ranks']} {row['wanted']}: found "
        f"{row['found']} {row['found_cause']}, {row['share']:.0%} of waiting{wrong}"
    )


def _clean(runs: int, load: int) -> int:
    from tests.support.analysed import analyse_world
    from tests.support.machines.ranks import run_here

    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(load)]
    named = 0
    try:
        for number in range(runs):
            with tempfile.TemporaryDirectory(prefix="commprof-clean-") as directory:
                result = analyse_world(run_here(Path(directory), "mlp", 2, 40))
            assert result is not None
            late = result.lateness.late_rank
            named += late is not None
            costs = [(c.rank, c.cause, round(c.share, 2)) for c in result.lateness.wait_costs[:4]]
            print(number, late and (late.rank, late.phase, late.p_value), costs, flush=True)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    return judged([of_all("clean runs in which no rank is named", runs - named, runs, runs)])


if __name__ == "__main__":
    sys.exit(main())
