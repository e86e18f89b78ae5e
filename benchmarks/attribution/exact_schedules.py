"""Tests if the report finds late ranks, their phases and their costs in simulated schedules.

    PYTHONPATH=. python benchmarks/attribution/exact_schedules.py --late 500 --clean 200
        --in-turn 50 --results exact_schedules.jsonl

Each schedule is drawn from a seed and simulated: DDP, asynchronous all-reduces, FSDP2, tensor and
data parallel groups, or a pipeline. It has 2 to 1,024 ranks on one to four hosts. Each host has a
clock of its own, and all times contain noise. One rank is late by 0.2 to 3 times its backward pass,
in any phase or by a pause of its process. In a fifth of the schedules a second rank is late by a
quarter of the first rank's delay. All waits and their causes are known from the schedule. Schedules
in the results file are not repeated. Prints a line per demand, and exits with 1 if a demand is not
met.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judging.demands import Demand, at_most, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows
from tests.support.builders.exact.drawn import Drawn, any_job
from tests.support.builders.exact.outcome import outcome

#: Number of schedules with a late rank, and least number in which its phase is named.
LATE, RIGHT_PHASES = 500, 495
#: Number of schedules without a late rank, and least number in which no rank is named.
CLEAN, SILENT = 200, 198
#: Number of schedules with two ranks that are late in turn, and least number in which the report is
#: right.
IN_TURN, RIGHT_IN_TURN = 50, 49
#: If two ranks are late in turn, the report may name a rank that caused at least this share of all
#: waiting. The analysis names no rank with a smaller share.
LEAST_SHARE = 0.6
#: Largest allowed error of a cost, in percent of the step.
MOST_OF_STEP = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--late", type=int, default=LATE, help="schedules with a late rank")
    parser.add_argument("--clean", type=int, default=CLEAN, help="clean schedules")
    parser.add_argument(
        "--in-turn", type=int, default=IN_TURN, help="schedules with two ranks late in turn"
    )
    parser.add_argument(
        "--most-ranks", type=int, default=1024, help="largest number of ranks of a schedule"
    )
    parser.add_argument("--minutes", type=float, default=60, help="time limit for new schedules")
    parser.add_argument(
        "--results", type=Path, help="JSON lines; earlier schedules are not repeated"
    )
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    wanted = [("late", seed) for seed in range(args.late)]
    wanted += [("clean", seed) for seed in range(args.clean)]
    wanted += [("in turn", seed) for seed in range(args.in_turn)]
    rows, kept = read_rows(args.results), Lines(args.results)
    done = {(row["kind"], row["seed"]) for row in rows}
    for kind, seed in wanted:
        if (kind, seed) in done or time.monotonic() > end:
            continue
        rows.append(_row(kind, seed, args.most_ranks))
        kept.append(rows[-1])
    chosen = [row for row in rows if (row["kind"], row["seed"]) in wanted]
    _print_wrong(chosen)
    return judged(demands(chosen))


def demands(rows: list[dict[str, Any]]) -> list[Demand]:
    """Checks the demands on late ranks, their phases and costs, and on clean schedules."""
    late, clean, in_turn = (
        [r for r in rows if r["kind"] == k] for k in ("late", "clean", "in turn")
    )
    found = []
    if late:
        right = [r for r in late if r["named"] == r["rank"]]
        phases = [r for r in right if r["named cause"] == r["cause"]]
        found.append(of_all("schedules whose late rank is named", len(right), len(late), LATE))
        found.append(
            of_all(
                "schedules whose late rank and phase are named",
                len(phases),
                len(late),
                LATE,
                RIGHT_PHASES,
            )
        )
    if clean:
        silent = sum(r["named"] is None for r in clean)
        what = "clean schedules in which no rank is named"
        found.append(of_all(what, silent, len(clean), CLEAN, SILENT))
    if in_turn:
        right = [r for r in in_turn if _is_true(r)]
        what = "two ranks late in turn: no rank is named, or a rank that caused most of the waiting"
        found.append(of_all(what, len(right), len(in_turn), IN_TURN, RIGHT_IN_TURN))
    if rows:
        for name in ("cost", "wait", "transfer"):
            errors = np.array([r[f"{name} error %"] for r in rows])
            what = f"largest error of a rank's {name}, in percent of the step"
            found.append(at_most(what, float(errors.max()), MOST_OF_STEP, " %"))
    return found


def _is_true(row: dict[str, Any]) -> bool:
    """True if no rank is named, or if the named rank was late and caused most of the waiting."""
    if row["named"] is None:
        return True
    is_late = row["named"] in row.get("late", ())
    return is_late and (row.get("true share") or 0.0) >= LEAST_SHARE


def _row(kind: str, seed: int, most_ranks: int) -> dict[str, Any]:
    late = {"clean": 0, "in turn": 2, "late": 2 if seed % 5 == 4 else 1}[kind]
    of = any_job(seed, late, kind == "in turn", most_ranks)
    found = outcome(of)
    first = of.late[0] if of.late else None
    return {
        "kind": kind,
        "seed": seed,
        "shape": of.job.name,
        "ranks": of.job.size,
        "hosts": _hosts(of),
        "late": [each.rank for each in of.late],
        "rank": None if first is None else first.rank,
        "cause": None if first is None else first.cause,
        "backward passes": _passes(of),
        "named": found.rank,
        "named cause": found.cause,
        "true share": None if found.rank is None else round(found.true_share, 3),
        "cost error %": round(100 * found.cost_error, 4),
        "wait error %": round(100 * found.wait_error, 4),
        "transfer error %": round(100 * found.transfer_error, 4),
    }


def _hosts(of: Drawn) -> int:
    return -(-of.job.size // of.job.ranks_per_host) if of.job.ranks_per_host else 1


def _passes(of: Drawn) -> float | None:
    """Returns the first late rank's mean delay in backward passes; None if no rank is late."""
    if not of.late:
        return None
    extra_ns = of.late[0].extra_ns
    return round(float(extra_ns[extra_ns > 0].mean()) / of.backward_ns, 3)


def _print_wrong(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        expected = (row["rank"], row["cause"]) if row["kind"] == "late" else (None, None)
        if row["kind"] == "in turn" and _is_true(row):
            continue
        if (row["named"], row["named cause"]) != expected:
            print("wrong:", row)


if __name__ == "__main__":
    sys.exit(main())
