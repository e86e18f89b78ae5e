"""Measures the gain of the backend `commprof` over gloo, as ratios of alternating measurements.

    PYTHONPATH=. python benchmarks/shared_memory.py all_reduce
    PYTHONPATH=. python benchmarks/shared_memory.py ddp
    PYTHONPATH=. python benchmarks/shared_memory.py hosts
    PYTHONPATH=. python benchmarks/shared_memory.py faults

Each rank has one thread. If there are more ranks than cores, ranks share cores in the measurements
of both backends. `hosts` simulates hosts by network namespaces, which needs root. The links between
these hosts use Reno (see rank_launch.py). `faults` builds the tests of the C++ core, and runs the
test that kills and stops ranks. With --json FILE each part writes its figures to FILE, and keeps
the figures of the other parts. The exit code is 1 if a demand on a part is not met, or a point was
not measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_least, at_most, judged, of_all
from benchmarks.judging.medians import median_interval, ratio_interval, ratio_of
from benchmarks.judging.results_file import read_parts, write_part
from benchmarks.ranks.rank_launch import on_hosts, on_this_host

RANK_SCRIPT = Path(__file__).parent / "ranks" / "shared_memory_rank.py"
SIZES = (4096, 1_000_000, 25_000_000, 100_000_000)
RANKS = (2, 4, 8)
#: Least ratio of gloo's time to our time, by size. It holds for every number of ranks.
LEAST = dict(zip(SIZES, (6, 5, 3, 3), strict=True))
#: With this many ranks and bytes, our time may be at most ``MOST_PASSES`` times as long as a pass,
#: in which each rank reads and writes its data once.
MOST_PASSES, PASSED, PASSING_RANKS = 3.5, SIZES[-1], 2
MODELS, DDP_RANKS = ("transformer", "25M"), (2, 4)
#: Communication makes each step longer. Least ratio of the added time with gloo to the added time
#: with our backend.
LEAST_COMMUNICATION = 3.0
HOSTS_BYTES, RATES, RANKS_PER_HOST = 25_000_000, ("1gbit", "10gbit"), (2, 4)
#: Least ratio of gloo's time to our time, by link and ranks per host. At other settings the ratio
#: must be larger than 1.
LEAST_BETWEEN_HOSTS = {("1gbit", 4): 1.8}
#: Largest ratio of the bytes that a host sends (or receives) to the bytes of the data. Each of the
#: two hosts must send its sum once. Headers and acknowledgements add 0.7 % in frames of 9000 bytes.
MOST_SENT = 1.02
TRIES = 100


def main() -> int:
    """Runs one part, and prints its table and its demands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument(
        "--ranks", help="numbers of ranks (default: 2,4,8; for `ddp` and `hosts`: 2,4)"
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="sizes in bytes")
    parser.add_argument("--rates", default=",".join(RATES), help="rates of the links, as in tc")
    parser.add_argument("--models", default=",".join(MODELS), help="models of `ddp`")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tries", type=int, default=TRIES, help="number of tries of `faults`")
    parser.add_argument("--json", type=Path, help="file to which the figures are added")
    args = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} usable cores")
    figures = PARTS[args.part](args)
    write_part(args.json, args.part, figures)
    kept = read_parts(args.json).get(args.part, figures)
    return judged(DEMANDS[args.part](kept))


def _numbers(text: str | None, default: tuple[int, ...]) -> list[int]:
    return [int(word) for word in text.split(",")] if text else [*default]


def _all_reduce(args: argparse.Namespace) -> dict[str, Any]:
    rows, results = [], {}
    sizes = _numbers(args.sizes, SIZES)
    for ranks in _numbers(args.ranks, RANKS):
        told = {"part": "all_reduce", "sizes": sizes, "rounds": args.rounds}
        for size, times in on_this_host(RANK_SCRIPT, ranks, told).items():
            results[f"{ranks} {size}"] = times
            ours = times["commprof"]
            passes = _ratio(ours, times["read and write"])[0]
            gain = _ratio(times["gloo"], ours)
            rows.append((ranks, int(size), np.median(ours), *gain, LEAST.get(int(size)), passes))
    headers = ("ranks", "bytes", "ours ms", "gloo : ours", "25 %", "75 %", "demand", "ours : pass")
    print(
        "All-reduce of fp32, times of the slowest rank. In a pass, each rank reads and writes its "
        "data once."
    )
    print(tabulate(rows, headers=headers, floatfmt=(".0f", ".0f", ".3f", *[".2f"] * 5)))
    return results


def all_reduce_demands(figures: dict[str, Any]) -> list[Demand]:
    """Checks the demands at each point: gain over gloo, and ratio to a pass over the data."""
    found = []
    for name, times in figures.items():
        ranks, size = map(int, name.split())
        if size in LEAST:
            gains = np.array(times["gloo"]) / times["commprof"]
            what = f"all-reduce of {size:,} bytes, {ranks} ranks: gloo's time / ours"
            between = median_interval(gains)
            found.append(at_least(what, float(np.median(gains)), LEAST[size], "x", between))
        if (ranks, size) == (PASSING_RANKS, PASSED):
            passes = np.array(times["commprof"]) / times["read and write"]
            what = f"all-reduce of {size:,} bytes, {ranks} ranks: our time / a pass over the data"
            between = median_interval(passes)
            found.append(at_most(what, float(np.median(passes)), MOST_PASSES, "x", between))
    return [*found, _complete(figures, [f"{ranks} {size}" for ranks in RANKS for size in SIZES])]


def _ddp(args: argparse.Namespace) -> dict[str, Any]:
    results = {}
    for model in args.models.split(","):
        for ranks in _numbers(args.ranks, DDP_RANKS):
            told = {"part": "ddp", "model": model, "rounds": 2 * args.rounds}
            results[f"{model} {ranks}"] = on_this_host(RANK_SCRIPT, ranks, told)
    headers = ("model", "ranks", "without ms", "gloo ms", "ours ms", "communication gloo : ours")
    headers += ("step gloo : ours", "25 %", "75 %", "step shorter by %")
    print("Forward and backward with DDP; communication time is what communication adds to a step")
    print(tabulate(_ddp_rows(results), headers=headers, floatfmt=".2f"))
    return results


def _ddp_rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    rows = []
    for name, times in results.items():
        alone, gloo, ours = (np.array(times[key]) for key in ("no communication", *GROUPS))
        medians = [np.median(x) for x in (alone, gloo, ours)]
        communication = ratio_of(np.median(gloo - alone), np.median(ours - alone))
        shorter = 100 * (1 - np.median(ours / gloo))
        rows.append((*name.split(), *medians, communication, *_ratio(gloo, ours), shorter))
    return rows


def ddp_demands(figures: dict[str, Any]) -> list[Demand]:
    """Checks the demands per model and ranks: less communication, and a step that is not longer."""
    found = []
    for name, times in figures.items():
        where = "DDP, model {}, {} ranks".format(*name.split())
        alone, gloo, ours = (np.array(times[key]) for key in ("no communication", *GROUPS))
        above, below = gloo - alone, ours - alone
        value = ratio_of(np.median(above), np.median(below))
        what = f"{where}: communication time, gloo / ours"
        between = ratio_interval(above, below)
        found.append(at_least(what, value, LEAST_COMMUNICATION, "x", between))
        shorter = 1 - float(np.median(ours / gloo))
        what = f"{where}: step time, gloo / ours ({shorter:.1%} shorter)"
        step = gloo / ours
        found.append(at_least(what, float(np.median(step)), 1, "x", median_interval(step), ".3f"))
    wanted = [f"{model} {ranks}" for model in MODELS for ranks in DDP_RANKS]
    return [*found, _complete(figures, wanted)]


def _hosts(args: argparse.Namespace) -> dict[str, Any]:
    rows, results = [], {}
    for rate in args.rates.split(","):
        for ranks in _numbers(args.ranks, RANKS_PER_HOST):
            told = {"part": "hosts", "size": HOSTS_BYTES, "rounds": args.rounds}
            times = on_hosts(RANK_SCRIPT, 2, ranks, rate, told)
            results[f"{rate} {ranks}"] = times
            gloo, ours = (times[key] for key in GROUPS)
            per_byte = [_per_byte(one, "sent") for one in (gloo, ours)]
            ratio = _ratio(gloo["ms"], ours["ms"])
            rows.append((rate, ranks, np.median(ours["ms"]), *ratio, *per_byte))
    headers = ("link", "ranks per host", "ours ms", "gloo : ours", "25 %", "75 %")
    headers += ("gloo sends", "ours sends")
    print(
        "All-reduce of 25 MB over 2 hosts. Sends: bytes that left rank 0's host, per byte of data"
    )
    print(tabulate(rows, headers=headers, floatfmt=".2f"))
    return results


def _per_byte(one: dict[str, Any], direction: str) -> float:
    return float(np.median(one[direction])) / HOSTS_BYTES


def hosts_demands(figures: dict[str, Any]) -> list[Demand]:
    """Checks the demands per link and ranks: gain over gloo, and bytes on the link."""
    found = []
    for name, times in figures.items():
        rate, ranks = name.split()
        where = f"all-reduce of 25 MB, 2 hosts of {ranks} ranks, {rate}"
        gloo, ours = (times[key] for key in GROUPS)
        gains = np.array(gloo["ms"]) / ours["ms"]
        value, between = float(np.median(gains)), median_interval(gains)
        what = f"{where}: gloo's time / ours"
        least = LEAST_BETWEEN_HOSTS.get((rate, int(ranks)))
        if least is None:
            figure = f"{value:.2f}x [{between[0]:.2f}, {between[1]:.2f}]"
            found.append(Demand(what, figure, "more than 1x", value > 1))
        else:
            found.append(at_least(what, value, least, "x", between))
        for direction in ("sent", "received"):
            what = f"{where}: bytes {direction} / the least that an all-reduce needs"
            found.append(at_most(what, _per_byte(ours, direction), MOST_SENT, form=".4f"))
    wanted = [f"{rate} {ranks}" for rate in RATES for ranks in RANKS_PER_HOST]
    return [*found, _complete(figures, wanted)]


def _faults(args: argparse.Namespace) -> dict[str, Any]:
    from tests.support.machines.core_tests import build

    done = subprocess.run([build("") / "test_shm_failure", str(args.tries)], check=False)
    return {"tries": args.tries, "failed": done.returncode}


def faults_demands(figures: dict[str, Any]) -> list[Demand]:
    """Checks that all tries succeed; if one fails, none counts, because the test ends there."""
    right = 0 if figures["failed"] else figures["tries"]
    what = "ranks killed or stopped: an error names the rank in time, nothing stays in /dev/shm"
    return [of_all(what, right, figures["tries"], TRIES)]


def _complete(figures: dict[str, Any], wanted: list[str]) -> Demand:
    measured = sum(name in figures for name in wanted)
    return of_all("points measured", measured, len(wanted), len(wanted))


def _ratio(other: list[float], ours: list[float]) -> tuple[float, float, float]:
    """Returns the median and the quartiles of the ratios ``other / ours``."""
    ratios = np.array(other) / np.array(ours)
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return middle, low, high


GROUPS = ("gloo", "commprof")
PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "all_reduce": _all_reduce,
    "ddp": _ddp,
    "hosts": _hosts,
    "faults": _faults,
}
DEMANDS: dict[str, Callable[[dict[str, Any]], list[Demand]]] = {
    "all_reduce": all_reduce_demands,
    "ddp": ddp_demands,
    "hosts": hosts_demands,
    "faults": faults_demands,
}

if __name__ == "__main__":
    sys.exit(main())
