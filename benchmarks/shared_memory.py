"""What the backend `commprof` gains over gloo here: every figure is a ratio of things in turns.

    PYTHONPATH=. python benchmarks/shared_memory.py all_reduce
    PYTHONPATH=. python benchmarks/shared_memory.py ddp
    PYTHONPATH=. python benchmarks/shared_memory.py hosts
    PYTHONPATH=. python benchmarks/shared_memory.py faults

One thread per rank. More ranks than cores measure how ranks share cores, on both sides of a ratio.
`hosts` makes hosts out of network namespaces, which takes root. `faults` builds the core's test.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from rank_launch import on_hosts, on_this_host
from tabulate import tabulate

ROOT = Path(__file__).parents[1]
RANK_SCRIPT = Path(__file__).with_name("shared_memory_rank.py")
SIZES = (4096, 1_000_000, 25_000_000, 100_000_000)
#: Demanded least ratio of gloo's time to ours, by size.
DEMANDS = dict(zip(SIZES, (6, 5, 3, 3), strict=True))


def main() -> None:
    """Runs one part and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--ranks", default="2,4,8", help="with commas; per host for `hosts`")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")
    parser.add_argument("--rates", default="1gbit,10gbit", help="of the links, as tc has it")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tries", type=int, default=100, help="of `faults`")
    parser.add_argument("--json", type=Path, help="write all times there")
    args = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} usable cores")
    result = PARTS[args.part](args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def _all_reduce(args: argparse.Namespace) -> Any:
    sizes = [int(size) for size in args.sizes.split(",")]
    rows, results = [], {}
    for ranks in map(int, args.ranks.split(",")):
        times = on_this_host(
            RANK_SCRIPT, ranks, {"part": "all_reduce", "sizes": sizes, "rounds": args.rounds}
        )
        results[ranks] = times
        for size, one in times.items():
            ours, demand = one["commprof"], DEMANDS.get(int(size))
            copy = _ratio(ours, one["read and write"])
            rows.append(
                (ranks, int(size), np.median(ours), *_ratio(one["gloo"], ours), demand, copy[0])
            )
    headers = ("ranks", "bytes", "ours ms", "gloo : ours", "25 %", "75 %", "demand", "ours : pass")
    print("All-reduce of fp32, slowest rank; pass: each rank reads and writes its data once")
    print(tabulate(rows, headers=headers, floatfmt=(".0f", ".0f", ".3f", *[".2f"] * 5)))
    return results


def _ddp(args: argparse.Namespace) -> Any:
    rows, results = [], {}
    for model in ("transformer", "25M"):
        for ranks in (2, 4):
            times = on_this_host(
                RANK_SCRIPT, ranks, {"part": "ddp", "model": model, "rounds": 2 * args.rounds}
            )
            results[f"{model} {ranks}"] = times
            alone, gloo, ours = (
                np.array(times[name]) for name in ("no communication", "gloo", "commprof")
            )
            medians = [np.median(x) for x in (alone, gloo, ours)]
            communication = np.median(gloo - alone) / np.median(ours - alone)
            rows.append((model, ranks, *medians, communication, *_ratio(gloo, ours)))
    headers = ("model", "ranks", "alone ms", "gloo ms", "ours ms", "communication gloo : ours")
    headers += ("step gloo : ours", "25 %", "75 %")
    print("DDP's forward and backward; communication: what a step takes longer than alone")
    print(tabulate(rows, headers=headers, floatfmt=".2f"))
    return results


def _hosts(args: argparse.Namespace) -> Any:
    size = 25_000_000
    rows, results = [], {}
    for rate in args.rates.split(","):
        for ranks in (2, 4):
            told = {"part": "hosts", "size": size, "rounds": args.rounds}
            times = on_hosts(RANK_SCRIPT, 2, ranks, rate, told)
            results[f"{rate} {ranks}"] = times
            gloo, ours = times["gloo"], times["commprof"]
            bytes_per = [np.median(one["bytes"]) / size for one in (gloo, ours)]
            ratio = _ratio(gloo["ms"], ours["ms"])
            rows.append((rate, ranks, np.median(ours["ms"]), *ratio, *bytes_per))
    headers = ("link", "ranks per host", "ours ms", "gloo : ours", "25 %", "75 %")
    headers += ("gloo sends", "ours sends")
    print(
        "All-reduce of 25 MB over 2 hosts; sends: bytes that left rank 0's host, per byte of data"
    )
    print(tabulate(rows, headers=headers, floatfmt=".2f"))
    return results


def _faults(args: argparse.Namespace) -> Any:
    """Kills and stops ranks in the middle, in the core's own test."""
    build = ROOT / "build" / "faults"
    switches = ["-G", "Ninja", "-DCOMMPROF_TORCH=OFF", "-DCOMMPROF_TESTS=ON"]
    subprocess.run(["cmake", "-S", ROOT, "-B", build, *switches], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", build, "--target", "test_shm_failure"], check=True)
    done = subprocess.run([build / "test_shm_failure", str(args.tries)], check=False)
    print(f"{args.tries} tries: {'all named in time' if done.returncode == 0 else 'FAILED'}")
    return {"tries": args.tries, "failed": done.returncode}


def _ratio(other: list[float], ours: list[float]) -> tuple[float, float, float]:
    """Median of the turns' ratios, and their quartiles."""
    ratios = np.array(other) / np.array(ours)
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return middle, low, high


PARTS = {"all_reduce": _all_reduce, "ddp": _ddp, "hosts": _hosts, "faults": _faults}

if __name__ == "__main__":
    main()
