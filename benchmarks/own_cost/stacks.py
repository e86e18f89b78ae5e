"""Measures the processor time that recording the Python stack adds to one call of a collective.

The calls go to torch's "fake" backend, which does nothing. Calls at several depths of the Python
stack are measured, in turns with and without recorded stacks. The exit code is 1 if recording a
stack takes more than 15 us.

    PYTHONPATH=. python benchmarks/own_cost/stacks.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from tabulate import tabulate
from torch.testing._internal.distributed.fake_pg import FakeStore

import commprof
from benchmarks.judging.demands import at_most, judged

#: Numbers of frames that recursion adds to the Python stack. A training script has about 15 frames,
#: or about 40 with a framework.
DEPTHS = (5, 20, 60)
MOST_US = 15.0
CALLS, REPEATS, TURNS = 200, 10, 4


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    rows = []
    for depth in DEPTHS:
        times_us: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(TURNS):
            has_stacks = turn % 2 == 1
            with (
                tempfile.TemporaryDirectory() as folder,
                commprof.profile(folder, stacks=has_stacks),
            ):
                # not counted, because new stacks are written to the trace
                below(depth, call_us)
                times_us[has_stacks] += [below(depth, call_us) for _ in range(REPEATS)]
        medians = statistics.median(times_us[False]), statistics.median(times_us[True])
        rows.append((depth, *medians, medians[1] - medians[0]))
    dist.destroy_process_group()
    print("Microseconds of processor time of one all-reduce on the fake backend\n")
    print(tabulate(rows, ("frames", "without", "with its stack", "difference"), floatfmt=".2f"))
    most_us = max(row[3] for row in rows)
    return judged([at_most("time that a stack adds to a call", most_us, MOST_US, " us")])


def below(depth: int, measure: Callable[[], float]) -> float:
    """Calls ``measure`` at the given depth of recursion."""
    return below(depth - 1, measure) if depth else measure()


def call_us() -> float:
    """Returns this thread's processor time per call."""
    tensor = torch.zeros(4)
    began_ns = time.thread_time_ns()
    for _ in range(CALLS):
        dist.all_reduce(tensor)
    return (time.thread_time_ns() - began_ns) / CALLS / 1e3


if __name__ == "__main__":
    sys.exit(main())
