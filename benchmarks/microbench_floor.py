"""What commprof microbench adds to a minimal C++ loop over the same c10d process group.

    PYTHONPATH=. python benchmarks/microbench_floor.py [--ranks 2] [--rounds 10]

All-reduce on gloo, in place, 1 KB to 100 MB. The two loops take turns in one job, round after
round, each call behind a barrier; figures are medians over rounds, and ratios are of neighbours in
one round. "back to back" is the C++ loop without barriers, its total over its calls.
Demanded: busbw within 3 % from 1 MB on, times within 10 us below. About a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from commprof.analysis.bandwidth import bus_factor
from commprof.launch.elastic import launch_function, stop_fork_server

HERE = Path(__file__).parent
SIZES = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000, 100_000_000)
LARGE_BYTES = 1_000_000
MOST_SHARE = 0.03
MOST_US = 10.0


def main() -> None:
    """Measures, prints the table, and fails where the demand is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", help="bytes, with commas (default: 1 KB to 100 MB)")
    parser.add_argument("--json", type=Path, help="write the rounds' medians there")
    args = parser.parse_args()
    sizes = [int(word) for word in args.sizes.split(",")] if args.sizes else [*SIZES]
    rows = _measure(args.ranks, args.rounds, sizes)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    judged = [_judged(row, args.ranks) for row in rows]
    headers = (
        *("size B", "ours us", "C++ us", "apart us", "busbw GB/s", "C++ GB/s"),
        *("busbw ratio", "quartiles", "back to back us", "demand"),
    )
    print(tabulate(judged, headers=headers, floatfmt=".3f"))
    sys.exit(any(row[-1] != "met" for row in judged))


def _measure(ranks: int, rounds: int, sizes: list[int]) -> list[dict[str, Any]]:
    import microbench_floor_rank
    from torch.utils import cpp_extension

    build = Path(tempfile.gettempdir()) / "commprof-microbench-floor"
    build.mkdir(exist_ok=True)
    source = str(HERE / "microbench_floor.cpp")
    floor = cpp_extension.load("microbench_floor", [source], build_directory=str(build))
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        plan = {
            "floor": floor.__file__,
            "sizes": sizes,
            "rounds": rounds,
            "result": str(base / "result"),
        }
        (base / "plan.json").write_text(json.dumps(plan))
        try:
            launch_function(
                microbench_floor_rank.run, str(base / "plan.json"), ranks, base / "logs"
            )
        finally:
            stop_fork_server()
        return [json.loads(line) for line in (base / "result").read_text().splitlines()]


def _judged(row: dict[str, Any], ranks: int) -> tuple[Any, ...]:
    ours, floor = np.array(row["ours"]), np.array(row["floor"])
    size = row["size_bytes"]
    ratio = floor / ours
    apart = float(np.median(ours - floor))
    middle = float(np.median(ratio))
    met = abs(middle - 1) <= MOST_SHARE if size >= LARGE_BYTES else abs(apart) <= MOST_US
    low, high = np.percentile(ratio, [25, 75])
    factor = bus_factor("all_reduce", ranks) * size / 1e3
    return (
        size,
        float(np.median(ours)),
        float(np.median(floor)),
        apart,
        factor / float(np.median(ours)),
        factor / float(np.median(floor)),
        middle,
        f"{low:.3f}-{high:.3f}",
        float(np.median(row["back_to_back"])),
        "met" if met else "MISSED",
    )


if __name__ == "__main__":
    main()
