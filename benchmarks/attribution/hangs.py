"""Tests if the watchdog soon names a hanging rank, and if the job continues afterwards.

    PYTHONPATH=. python benchmarks/attribution/hangs.py --tries 20 --results hangs.jsonl

Each try trains the `timed` workload, which sleeps, on 2 to 8 ranks. The watchdog's threshold is
2 s. The try stops one rank (SIGSTOP) at a moment drawn from the seed. When the watchdog has written
the rank's stacks, the try resumes the rank. The expected result of the job comes from an
undisturbed run with the same number of ranks. Every third try is in always-on mode. Tries in the
results file are not repeated. The exit code is 1 if a demand is not met or tries are missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows

# The ranks import this file as their main module, so imports for the parent are in functions.

TRIES = 20
SOON_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=8, help="time limit for new tries")
    parser.add_argument("--results", type=Path, help="JSON lines; earlier tries are not repeated")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    wanted = [args.first_seed + number for number in range(args.tries)]
    rows, kept = read_rows(args.results), Lines(args.results)
    done = {row["seed"] for row in rows}
    for seed in wanted:
        if seed in done or time.monotonic() > end:
            continue
        rows.append(_try(seed))
        print(json.dumps(rows[-1]), flush=True)
        kept.append(rows[-1])
    rows = [row for row in rows if row["seed"] in wanted]
    _print(rows)
    return judged(demands(rows))


def _try(seed: int) -> dict[str, Any]:
    from tests.support.machines.faults.hangs import THRESHOLD_S, outcome, stop_a_rank, undisturbed

    mode = "full" if seed % 3 else "always-on"
    with tempfile.TemporaryDirectory(prefix="commprof-hang-") as directory:
        tried = stop_a_rank(Path(directory), seed, mode=mode)
        came_to = outcome(Path(directory), tried.ranks)
    named = [one["rank"] for one in tried.hang["accused"]] if tried.hang else []
    return {
        "seed": seed,
        "mode": mode,
        "ranks": tried.ranks,
        "rank": tried.rank,
        "named": named,
        "right": named == [tried.rank],
        "beyond_threshold_s": tried.named_after_s and round(tried.named_after_s - THRESHOLD_S, 3),
        "stacks_beyond_threshold_s": tried.stacks_after_s
        and round(tried.stacks_after_s - THRESHOLD_S, 3),
        "told_before_the_stop": tried.before,
        "has_stacks": "MainThread" in tried.stacks,
        "same_result": came_to == undisturbed(tried.ranks),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    late_s = [row["beyond_threshold_s"] for row in rows if row["beyond_threshold_s"] is not None]
    print(f"\n{len(rows)} tries:")
    before = sum(row["told_before_the_stop"] > 0 for row in rows)
    print(f"  reported another hang before the stop:     {before}")
    if late_s:
        worst = max(late_s)
        print(
            f"  from the threshold to the report: median {statistics.median(late_s):.2f} s, "
            f"at most {worst:.2f} s"
        )
    print(f"  ended with the expected result:            {sum(row['same_result'] for row in rows)}")


def demands(rows: list[dict[str, Any]]) -> list[Demand]:
    """Checks the demands on all tries together."""
    late_s = [row["beyond_threshold_s"] if row["right"] else None for row in rows]
    soon = [late is not None and late < SOON_S for late in late_s]
    counts = {
        "the hanging rank named, and no other": sum(row["right"] for row in rows),
        f"named within {SOON_S:g} s of the threshold": sum(soon),
        "stacks of the hanging rank in the run directory": sum(row["has_stacks"] for row in rows),
    }
    return [of_all(what, found, len(rows), TRIES) for what, found in counts.items()]


if __name__ == "__main__":
    sys.exit(main())
