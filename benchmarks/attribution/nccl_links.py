"""Tests if NCCL's transfers are divided correctly and a slow link is named, in simulated rings.

    PYTHONPATH=. python benchmarks/attribution/nccl_links.py --results nccl_links.jsonl

Each run calls NCCL's profiler plugin as 64 ranks in a ring of all-reduces do, with a simulated
clock. On each link, a send spends some time in the network, some time waiting for the peer, and
some time waiting for the GPU. These times differ between links, and one link takes four times as
long in the network. The report must give all times within 1 %, and name the slow link by its two
ends. Runs in the results file are not repeated. Prints a line per demand, and exits with 1 if a
demand is not met.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, at_most, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows

RANKS, RUNS, MOST_PERCENT = 64, 20, 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--minutes", type=float, default=5, help="time limit for new runs")
    parser.add_argument("--results", type=Path, help="JSON lines; earlier runs are not repeated")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    rows, kept = read_rows(args.results), Lines(args.results)
    done = {row["seed"] for row in rows}
    for seed in range(args.runs):
        if seed not in done and time.monotonic() < end:
            rows.append(_run(seed))
            kept.append(rows[-1])
            print(rows[-1], flush=True)
    return judged(demands(rows))


def demands(rows: list[dict[str, Any]]) -> list[Demand]:
    """Checks that all errors are small, and that only the slow link is named."""
    if not rows:
        return []
    named = sum(row["named"] == [row["slow"]] for row in rows)
    worst = max(row["largest_error_percent"] for row in rows)
    what = "largest relative error of network, peer, GPU, wait and transfer times of 64 ranks"
    return [
        at_most(what, worst, MOST_PERCENT, " %", form=".4f"),
        of_all("only the slow link is named, by its two ends", named, len(rows), RUNS),
    ]


def _run(seed: int) -> dict[str, Any]:
    from tests.support.machines.core_tests import build
    from tests.support.nccl_ring import analysed, largest_error, simulate

    player = build("", "test_nccl_network") / "test_nccl_network"
    slow = random.Random(seed).randrange(RANKS)
    with tempfile.TemporaryDirectory(prefix="commprof-nccl-") as directory:
        truth = simulate(player, Path(directory), RANKS, seed, slow)
        found = analysed(Path(directory))
    return {
        "seed": seed,
        "ranks": RANKS,
        "slow": [slow, (slow + 1) % RANKS],
        "named": [[int(x.from_rank), int(x.to_rank)] for x in found.links if x.slow],
        "largest_error_percent": 100 * largest_error(truth, found),
        "same_last": found.waits.same_last if found.waits else None,
        "collectives": found.waits.collectives if found.waits else None,
    }


if __name__ == "__main__":
    sys.exit(main())
