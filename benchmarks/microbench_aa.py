"""Tests that two sweeps of the same machine compare as equal.

    PYTHONPATH=. python benchmarks/microbench_aa.py DIR [--pairs 20] [--most-s 120] [--json FILE]

Runs `commprof microbench` twice per pair, and counts the pairs in which `commprof compare` flags a
row. Results are kept in DIR: a call continues where the last call ended, and stops after --most-s.
Chance flags 1 % of equal pairs. Two or more flagged pairs of 20 have a probability of only 1.7 %,
so one flagged pair is allowed. The exit code is 1 if more pairs are flagged, or if pairs are
missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, judged, of_all
from benchmarks.judging.results_file import write_json
from commprof.analysis.sweeps.sweep_comparison import SIGNIFICANCE, compare_sweeps
from commprof.analysis.sweeps.sweep_file import read_sweep

SWEEP = ("all_reduce", "--nproc", "2", "-b", "1K", "-e", "16M", "-f", "4")
PAIRS = 20
#: Number of flagged pairs that is allowed, out of 20.
MOST_FLAGGED = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--most-s", type=float, default=120)
    parser.add_argument("--json", type=Path, help="file for the result of each pair")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    files = [
        args.directory / f"{pair:02}{side}.json" for pair in range(args.pairs) for side in "ab"
    ]
    limit = time.monotonic() + args.most_s
    for file in files:
        if not file.exists() and time.monotonic() < limit:
            _sweep(file)
    pairs = [pair for pair in zip(files[::2], files[1::2], strict=True) if pair[1].exists()]
    results = {"significance": SIGNIFICANCE, "pairs": [_compared(*pair) for pair in pairs]}
    write_json(args.json, results)
    for one in results["pairs"]:
        print(
            f"{one['pair']}: {one['flagged']} of {one['rows']} rows flagged, least corrected p "
            f"{one['least_p']:.4f}, ratios {one['ratios'][0]:.3f} to {one['ratios'][1]:.3f}"
        )
    return judged(demands(results))


def _sweep(file: Path) -> None:
    partial = file.with_suffix(".partial")
    command = [sys.executable, "-m", "commprof.microbench", *SWEEP, "--json", str(partial)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    partial.rename(file)


def _compared(a: Path, b: Path) -> dict[str, Any]:
    rows = compare_sweeps(read_sweep(a), read_sweep(b)).rows
    ratios = sorted(row.ratio for row in rows)
    return {
        "pair": a.stem.rstrip("ab"),
        "rows": len(rows),
        "flagged": sum(row.verdict != "same" for row in rows),
        "least_p": min(row.corrected_p for row in rows),
        "ratios": [ratios[0], ratios[-1]],
    }


def demands(results: dict[str, Any]) -> list[Demand]:
    """Checks that at most ``MOST_FLAGGED`` pairs are flagged."""
    pairs = results["pairs"]
    same = sum(one["flagged"] == 0 for one in pairs)
    what = f"pairs of equal sweeps with no row flagged at a level of {results['significance']:.0%}"
    return [of_all(what, same, len(pairs), PAIRS, PAIRS - MOST_FLAGGED)]


if __name__ == "__main__":
    sys.exit(main())
