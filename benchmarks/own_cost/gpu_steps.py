"""Measures the cost of recording on one GPU, for steps of DDP and for single calls of NCCL.

    PYTHONPATH=. python benchmarks/own_cost/gpu_steps.py [small] [medium] [large] [calls]
        [--minutes 2] [--json FILE]

Each mode is a process of its own, and the modes take turns, as in overhead.py. A step ends when the
GPU has finished its work; otherwise, the GPU's work could hide the cost of recording on the host.
There is only one rank, so NCCL's all-reduce is at most a copy. But ProcessGroupNCCL uses streams
and events as it does with several ranks.

Prints the ratio of each mode to plain processes, with its 95 % interval, and the microseconds that
recording adds to a call. All times are written to FILE. The exit code is 1 if a step or a call
takes longer with recording than with torch.profiler.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.judging.demands import Demand, judged
from benchmarks.judging.results_file import write_json
from benchmarks.own_cost.calls import WATCHED, call_times
from benchmarks.own_cost.overhead import (
    CLOCKS,
    CONTROL,
    PROFILER,
    RECORDED,
    Turns,
    add,
    below_profiler,
    fork_server,
    generation,
    ratio,
    shown,
)

MODES = ("plain", CONTROL, *RECORDED, PROFILER)
SIZES = ("small", "medium", "large")
CALLS = "calls"
TURNS: Turns = (20, 4, 5)
LEAST_GENERATIONS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*SIZES, CALLS], help="default: all")
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes for steps (default: 2)")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    args = parser.parse_args()
    if wrong := set(args.parts) - {*SIZES, CALLS}:
        parser.error(f"no such part: {', '.join(wrong)} (allowed: {', '.join((*SIZES, CALLS))})")
    sizes = [part for part in args.parts if part != CALLS]
    results: dict[str, Any] = {size: {} for size in sizes}
    if sizes:
        _generations(results, time.monotonic() + 60 * args.minutes, args.json)
    for clock, name in CLOCKS.items():
        print(f"\n{name[0].upper()}{name[1:]} per step, relative to plain processes [95 %]\n")
        rows = [
            (size, *(shown(ratio(results[size], mode, clock)) for mode in MODES[1:]))
            for size in sizes
        ]
        print(tabulate(rows, headers=["model", *MODES[1:]], disable_numparse=True), flush=True)
    if CALLS in args.parts:
        results["collectives"] = call_times("nccl", 15)
        write_json(args.json, results)
    return judged(demands(results))


def _generations(results: dict[str, Any], end_s: float, file: Path | None) -> None:
    """Measures generations until ``end_s``, but at least LEAST_GENERATIONS."""
    order, done = random.Random(0), 0
    with fork_server("nccl") as server:
        while done < LEAST_GENERATIONS or time.monotonic() < end_s:
            for size, kept in results.items():
                begin_s = time.monotonic()
                add(kept, generation(server, size, 1, MODES, TURNS, order))
                write_json(file, results)
                print(f"{size}: {time.monotonic() - begin_s:.0f} s", file=sys.stderr, flush=True)
            done += 1


def demands(results: dict[str, Any]) -> list[Demand]:
    """Checks that steps and calls take less time with recording than with torch.profiler."""
    found = []
    for size in (size for size in SIZES if size in results):
        for clock in CLOCKS:
            ratios = {mode: ratio(results[size], mode, clock) for mode in (*RECORDED, PROFILER)}
            found += below_profiler(f"step of the {size} model on a GPU", clock, ratios)
    for call, times in results.get("collectives", {}).items():
        us = {mode: float(np.median(times[mode])) for mode in (*WATCHED, PROFILER)}
        figure = ", ".join(f"{mode} {value:.1f} us" for mode, value in us.items())
        most = max(us[mode] for mode in WATCHED)
        what = f"{call} on NCCL: time of a recorded call, compared with torch.profiler"
        found.append(Demand(what, figure, "below torch.profiler", most < us[PROFILER]))
    return found


if __name__ == "__main__":
    sys.exit(main())
