"""Do two sweeps of the same machine compare as equal?

    PYTHONPATH=. python benchmarks/microbench_aa.py DIR [--pairs 20] [--most-s 120]

Runs `commprof microbench` twice per pair, one after the other, and counts the pairs in which
`commprof compare` flags any row. Results stay in DIR: a call goes on where the last one ended, and
stops after --most-s. At 1 % significance over all rows of a pair, chance flags 0.2 of 20 pairs; 2
or more flagged ones would come with a chance of 1.7 %.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from commprof.analysis.sweep_comparison import SIGNIFICANCE, compare_sweeps
from commprof.analysis.sweep_file import read_sweep

SWEEP = ("all_reduce", "--nproc", "2", "-b", "1K", "-e", "16M", "-f", "4")


def main() -> None:
    """Measures what is missing, then prints each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--most-s", type=float, default=120)
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    files = [
        args.directory / f"{pair:02}{side}.json" for pair in range(args.pairs) for side in "ab"
    ]
    limit = time.monotonic() + args.most_s
    for file in files:
        if not file.exists() and time.monotonic() < limit:
            _sweep(file)
    _report([pair for pair in zip(files[::2], files[1::2], strict=True) if pair[1].exists()])


def _sweep(file: Path) -> None:
    partial = file.with_suffix(".partial")
    command = [sys.executable, "-m", "commprof.microbench", *SWEEP, "--json", str(partial)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    partial.rename(file)


def _report(pairs: list[tuple[Path, Path]]) -> None:
    flagged = 0
    for a, b in pairs:
        rows = compare_sweeps(read_sweep(a), read_sweep(b)).rows
        least = min(rows, key=lambda row: row.corrected_p)
        found = sum(row.verdict != "same" for row in rows)
        flagged += found > 0
        ratios = sorted(row.ratio for row in rows)
        print(
            f"{a.name} {b.name}: {found} of {len(rows)} rows flagged, least corrected p "
            f"{least.corrected_p:.4f}, ratios {ratios[0]:.3f} to {ratios[-1]:.3f}"
        )
    print(f"{flagged} of {len(pairs)} pairs flagged at {SIGNIFICANCE:.0%}")


if __name__ == "__main__":
    main()
