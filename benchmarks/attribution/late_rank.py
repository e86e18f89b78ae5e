"""Tests if the report names a late rank and the phase in which the rank is late.

    PYTHONPATH=. python benchmarks/attribution/late_rank.py --late 50 --clean 50
        --results late_rank.jsonl

Each run trains the `timed` workload, which sleeps, so 8 ranks fit on 2 cores. Half of the runs have
a late rank. The number of ranks (2 to 8), the late rank, the phase and the delay (5 to 50 ms) are
drawn from the seed. In some runs the process of the late rank is stopped, and the report must name
a host pause. Runs in the results file are not repeated. Prints a line per demand, and exits with 1
if a demand is not met.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows

# The ranks import this file as their main module, so imports for the parent are in functions.

PHASES = ("data", "forward", "backward", "optimizer", "pause")
NAMED_AS = {"pause": "host pause"}
STEPS = 25
#: Number of late and of clean runs. In LEAST late runs the phase must be right, and in LEAST clean
#: runs no rank may be named.
WANTED, LEAST = 50, 48


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--late", type=int, default=50, help="runs with a late rank")
    parser.add_argument("--clean", type=int, default=50, help="clean runs")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=12, help="time limit for new runs")
    parser.add_argument("--results", type=Path, help="JSON lines; earlier runs are not repeated")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    wanted = [(True, args.first_seed + i) for i in range(args.late)]
    wanted += [(False, args.first_seed + i) for i in range(args.clean)]
    rows, kept = read_rows(args.results), Lines(args.results)
    done = {(row["late"], row["seed"]) for row in rows}
    for late, seed in wanted:
        if (late, seed) in done or time.monotonic() > end:
            continue
        rows.append(_run(seed, late))
        kept.append(rows[-1])
    chosen = [row for row in rows if (row["late"], row["seed"]) in wanted]
    _print(chosen)
    return judged(demands(chosen))


def demands(rows: list[dict[str, Any]]) -> list[Demand]:
    """Checks that late ranks and their phases are named, and that clean runs name no rank."""
    late = [row for row in rows if row["late"]]
    clean = [row for row in rows if not row["late"]]
    named = [row for row in late if row.get("named") == row["rank"]]
    right = sum(row["named_phase"] == NAMED_AS.get(row["phase"], row["phase"]) for row in named)
    nobody = sum("named" not in row for row in clean)
    return [
        of_all("late rank named", len(named), len(late), WANTED),
        of_all("late rank named with its phase", right, len(late), WANTED, LEAST),
        of_all("clean runs in which no rank is named", nobody, len(clean), WANTED, LEAST),
    ]


def _run(seed: int, late: bool) -> dict[str, Any]:
    from tests.support.analysed import analyse_world
    from tests.support.machines.ranks import run_here

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
    found = result.lateness.late_rank
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
    return {**row, "steps": result.timing.measured_steps, "step_ms": result.timing.step_median_ms}


def _print(rows: list[dict[str, Any]]) -> None:
    from tabulate import tabulate

    columns = (
        *("seed", "ranks", "rank", "named", "phase", "named_phase", "explained"),
        *("late_ms", "wait_ms", "late_steps", "steps", "step_ms", "p_value"),
    )
    table = [[row.get(name) for name in columns] for row in rows]
    print(tabulate(table, headers=columns, floatfmt=".3f", missingval="-"))


if __name__ == "__main__":
    sys.exit(main())
