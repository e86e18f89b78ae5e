"""Is the late rank named, and where its lateness came from? Seeded runs whose truth is known.

    PYTHONPATH=. python benchmarks/late_rank.py --late 50 --clean 50 --results late_rank.jsonl

Each run trains the `timed` workload, which sleeps, so that 8 ranks fit on 2 cores. Half of the
runs have a late rank: 2 to 8 ranks, the rank, the phase that it lengthens and 5 to 50 ms are
drawn from the seed; or its process is stopped for that long, which is to be named a host pause.
Runs that stand in the results file already are not repeated. Ends with 1 if a late rank is not
named, or less than 96 % of the phases are right, or a rank is named in more than 4 % of the clean
runs.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

# The ranks import this file as their main module: what only the parent needs is imported below.

PHASES = ("data", "forward", "backward", "optimizer", "pause")
NAMED_AS = {"pause": "host pause"}
STEPS = 25
DEMAND = 0.96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--late", type=int, default=50, help="runs with a late rank")
    parser.add_argument("--clean", type=int, default=50, help="runs without one")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=12, help="start no run after that")
    parser.add_argument("--results", type=Path, help="one JSON line per run; runs in it are kept")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    wanted = [(True, args.first_seed + i) for i in range(args.late)]
    wanted += [(False, args.first_seed + i) for i in range(args.clean)]
    rows = _read(args.results)
    done = {(row["late"], row["seed"]) for row in rows}
    for late, seed in wanted:
        if (late, seed) in done or time.monotonic() > end:
            continue
        rows.append(_run(seed, late))
        if args.results:
            with args.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    chosen = [row for row in rows if (row["late"], row["seed"]) in wanted]
    _print(chosen)
    if not _demands_met(chosen):
        raise SystemExit(1)


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _run(seed: int, late: bool) -> dict[str, Any]:
    from commprof.analysis.world import analyse_world
    from tests.support.ranks import run_here

    draw = random.Random(seed)
    ranks = draw.randint(2, 8)
    rank, phase, late_ms = draw.randrange(ranks), draw.choice(PHASES), draw.uniform(5, 50)
    workload = (
        "timed:layers=2,data_ms=8,forward_ms=5,backward_ms=8,optimizer_ms=6,"
        "gradient_mb=0.02,bucket_cap_mb=0.01"
    )
    if late:
        workload += f",late_rank={rank},late_ms={late_ms:.2f},late_phase={phase}"
    with tempfile.TemporaryDirectory(prefix="commprof-late-") as directory:
        result = analyse_world(run_here(Path(directory), workload, ranks, STEPS))
    if result is None:
        raise SystemExit(f"seed {seed}: no rank left a trace")
    found = result.late_rank
    row: dict[str, Any] = {"seed": seed, "late": late, "ranks": ranks}
    if late:
        row.update(rank=rank, phase=phase, late_ms=late_ms)
    if found is not None:
        row.update(
            named=found.rank,
            named_phase=found.phase,
            explained=found.phase_share,
            wait_ms=found.wait_ns / 1e6,
            late_steps=found.late_steps,
            p_value=found.p_value,
        )
    return {**row, "steps": result.measured_steps, "step_ms": result.step_median_ms}


def _print(rows: list[dict[str, Any]]) -> None:
    from tabulate import tabulate

    columns = (
        *("seed", "ranks", "rank", "named", "phase", "named_phase", "explained"),
        *("late_ms", "wait_ms", "late_steps", "steps", "step_ms", "p_value"),
    )
    table = [[row.get(name) for name in columns] for row in rows]
    print(tabulate(table, headers=columns, floatfmt=".3f", missingval="-"))
    late = [row for row in rows if row["late"]]
    clean = [row for row in rows if not row["late"]]
    print(
        f"\nlate rank: {_ranks_right(late)} of {len(late)} named (demand: all), "
        f"{_phases_right(late)} with their phase (demand: {DEMAND:.0%})"
    )
    print(
        f"no late rank: nobody named in {_nobody_named(clean)} of {len(clean)} "
        f"(demand: {DEMAND:.0%})"
    )


def _demands_met(rows: list[dict[str, Any]]) -> bool:
    late = [row for row in rows if row["late"]]
    clean = [row for row in rows if not row["late"]]
    return (
        _ranks_right(late) == len(late)
        and _phases_right(late) >= DEMAND * len(late)
        and _nobody_named(clean) >= DEMAND * len(clean)
    )


def _ranks_right(late: list[dict[str, Any]]) -> int:
    return sum(row.get("named") == row["rank"] for row in late)


def _phases_right(late: list[dict[str, Any]]) -> int:
    """Of the right rank."""
    return sum(
        row.get("named") == row["rank"]
        and row.get("named_phase") == NAMED_AS.get(row["phase"], row["phase"])
        for row in late
    )


def _nobody_named(clean: list[dict[str, Any]]) -> int:
    return sum("named" not in row for row in clean)


if __name__ == "__main__":
    main()
