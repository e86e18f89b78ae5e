"""Compares the loop of commprof microbench with a minimal loop in C++.

    PYTHONPATH=. python benchmarks/microbench_floor.py [--ranks 2] [--groups 12] [--turns 192]

Every loop calls all-reduce on gloo, in place, with 1 KB to 100 MB, and has a barrier before each
call. Three loops take turns in one job: microbench's loop, the minimal loop, and the minimal loop
again. The second minimal loop shows how much equal loops differ on this machine. A process of the
lowest priority keeps each core awake, because waking a core of a virtual machine takes longer than
a small collective.

Neighbouring turns are compared, and the median over all turns counts. From 1 MB on, the bus
bandwidths may differ by 3 %; below 1 MB, the times may differ by 10 us. The exit code is 1 if a
demand is not met. The measurement takes about 25 minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from benchmarks.judging.demands import Demand, judged, of_all
from benchmarks.judging.results_file import write_json
from commprof.analysis.collectives.traffic import bus_factor
from commprof.launch.elastic import launch_function, stop_fork_server

HERE = Path(__file__).parent
SIZES = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000, 100_000_000)
LARGE_BYTES = 1_000_000
MOST_SHARE = 0.03
MOST_US = 10.0
HEADERS = (
    *("size B", "ours us", "C++ us", "busbw GB/s", "C++ GB/s"),
    *("busbw ratio", "95 %", "apart us", "95 % ", "C++ twice: ratio", "apart us "),
)

_SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""

Floats = npt.NDArray[np.float64]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--groups", type=int, default=12, help="process groups per size")
    parser.add_argument(
        "--turns", type=int, default=192, help="turns of each loop in a group; fewer at large sizes"
    )
    parser.add_argument(
        "--sizes", help="sizes in bytes, separated by commas (default: 1 KB to 100 MB)"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    sizes = [int(word) for word in args.sizes.split(",")] if args.sizes else [*SIZES]
    rows = _measure(args.ranks, args.groups, args.turns, sizes)
    results = {"ranks": args.ranks, "rows": rows}
    write_json(args.json, results)
    print(tabulate([_line(row, args.ranks) for row in rows], headers=HEADERS, floatfmt=".3f"))
    return judged(demands(results))


def _measure(ranks: int, groups: int, turns: int, sizes: list[int]) -> list[dict[str, Any]]:
    import microbench_floor_rank
    from torch.utils import cpp_extension

    source = str(HERE / "ranks" / "microbench_floor.cpp")
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        # The directory is new, because an interrupted build leaves its lock in its directory.
        floor = cpp_extension.load("microbench_floor", [source], build_directory=directory)
        plan = {
            "floor": floor.__file__,
            "sizes": sizes,
            "groups": groups,
            "turns": turns,
            "result": str(base / "result"),
        }
        (base / "plan.json").write_text(json.dumps(plan))
        awake = [
            subprocess.Popen([sys.executable, "-c", _SPIN, str(core)])
            for core in sorted(os.sched_getaffinity(0))
        ]
        try:
            launch_function(
                microbench_floor_rank.run, [str(base / "plan.json")], ranks, base / "logs"
            )
        finally:
            stop_fork_server()
            for spinner in awake:
                spinner.kill()
                spinner.wait()
        return [_row(line) for line in (base / "result").read_text().splitlines()]


def _row(line: str) -> dict[str, Any]:
    """Reads a line of results, with times rounded to whole ns."""
    return compared(json.loads(line, parse_float=lambda text: round(float(text), 3)))


def compared(turns: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of one size; times are in us.

    "ratio" and "apart_us" each hold a median and the two ends of its interval.
    """
    ours, floor, again = (np.array(turns[name]) for name in ("ours", "floor", "floor_again"))
    return {
        "size_bytes": turns["size_bytes"],
        "turns": len(ours),
        "ours_us": float(np.median(ours)),
        "floor_us": float(np.median(floor)),
        "ratio": _with_interval(floor / ours),
        "apart_us": _with_interval(ours - floor),
        "ratio_of_floors": float(np.median(floor / again)),
        "floors_apart_us": float(np.median(again - floor)),
    }


def _line(row: dict[str, Any], ranks: int) -> tuple[Any, ...]:
    factor = bus_factor("all_reduce", ranks) * row["size_bytes"] / 1e3
    times = row["ours_us"], row["floor_us"]
    (ratio, *ratio_ends), (apart, *apart_ends) = row["ratio"], row["apart_us"]
    return (
        *(row["size_bytes"], *times, *(factor / time_us for time_us in times)),
        *(ratio, _ends(ratio_ends, 3), apart, _ends(apart_ends, 1)),
        *(row["ratio_of_floors"], row["floors_apart_us"]),
    )


def demands(results: dict[str, Any]) -> list[Demand]:
    """Checks the bandwidth at large sizes, and the time at small sizes."""
    found = []
    for row in results["rows"]:
        size, (ratio, *ratio_ends), (apart, *apart_ends) = (
            row[name] for name in ("size_bytes", "ratio", "apart_us")
        )
        what = f"all-reduce of {size:,} bytes, {results['ranks']} ranks: "
        if size >= LARGE_BYTES:
            what += "busbw divided by that of the C++ loop"
            figure, asked = f"{ratio:.3f} [{_ends(ratio_ends, 3)}]", f"1 +- {MOST_SHARE}"
            met = abs(ratio - 1) <= MOST_SHARE
        else:
            what += "time minus that of the C++ loop"
            figure = f"{apart:.1f} us [{_ends(apart_ends, 1)}]"
            asked, met = f"0 +- {MOST_US:g} us", abs(apart) <= MOST_US
        found.append(Demand(what, figure, asked, met))
    sizes = {row["size_bytes"] for row in results["rows"]} & {*SIZES}
    return [*found, of_all("sizes measured", len(sizes), len(SIZES), len(SIZES))]


def _with_interval(values: Floats) -> list[float]:
    """Returns the median and the ends of its 95 % interval, from order statistics."""
    ordered, n = np.sort(values), len(values)
    beyond = itertools.accumulate(math.comb(n, k) for k in range(n // 2))
    below = sum(40 * ways <= 2**n for ways in beyond)
    first = max(below - 1, 0)
    return [float(np.median(values)), float(ordered[first]), float(ordered[n - 1 - first])]


def _ends(interval: list[float], digits: int) -> str:
    return ", ".join(f"{end:.{digits}f}" for end in interval)


if __name__ == "__main__":
    sys.exit(main())
