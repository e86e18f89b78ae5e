"""Compares commprof with torch.profiler on jobs that both record at once.

    PYTHONPATH=. python benchmarks/attribution/two_instruments.py [--backend nccl]

Three workloads on gloo, on 2 and on 4 ranks: all-reduces alone, collectives during operators, and
DDP. Both recordings go through the same analysis. Prints per rank the mean step, and how much
longer exposed time and waiting are according to torch.profiler: median over the steps, in % of the
step. In addition it prints how long waits lasted after their collective was done, as commprof
recorded it, and how long the thread was runnable without a core, as the kernel counted it; neither
recording uses that count. Then it prints a line per demand: the same collectives in each step, and
exposed time within 1 % of the step, in all and while a collective was in flight. Exits with 1 if a
demand is not met.

A rank without a core of its own stands still after its collective is done: commprof sees that in
the wait that does not return, and torch.profiler does not. With more ranks than cores, operators
therefore sleep, and tensors are small, as if each rank computed on a device; with ``--crowded``
they compete for the cores.

With ``--backend nccl`` the ranks share the first GPU, and NCCL joins them by sockets, as ranks on
two hosts. Here torch.profiler measures each kernel of NCCL, so its ends are compared one by one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.ranks.rank_launch import on_this_host
from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.collectives.calls import start_times
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.step.detail import WorldDetail
from commprof.analysis.step.exposure import exposures_of
from commprof.trace import columns
from commprof.trace.reader import read_trace

RANK_SCRIPT = Path(__file__).parents[1] / "ranks/two_instruments_rank.py"
WORKLOADS = ("alone", "beside", "ddp")
#: Largest difference in percent of the step.
MOST_PERCENT = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--crowded", action="store_true", help="ranks compute without a core each")
    args = parser.parse_args()
    demands: list[Demand] = []
    for workload in args.workloads:
        for ranks in args.ranks:
            rests = ranks > len(os.sched_getaffinity(0)) and not args.crowded
            demands += _compared(workload, ranks, rests, args.backend)
    return judged(demands)


def _compared(workload: str, ranks: int, rests: bool, backend: str) -> list[Demand]:
    name = f"{workload}, {ranks} ranks of {backend}"
    with tempfile.TemporaryDirectory() as place:
        asked = {"workload": workload, "directory": place, "rests": rests, "backend": backend}
        lacked_ms = np.array(on_this_host(RANK_SCRIPT, ranks, asked)) / 1e6
        ours, ours_calls = _read(Path(place) / "run")
        theirs, their_calls = _read(Path(place) / "torch")
        recorded = sorted((Path(place) / "run").rglob("*.trace"))
        stood = np.array([_stood_still_ms(path) for path in recorded])
        if backend == "nccl":
            for path in recorded:
                trace = Path(place) / f"torch/{path.stem.replace('_', '')}.json.gz"
                print(f"{name}: {path.stem}: {_kernels_apart(path, trace)}")
    steps = min(len(ours.steps), len(theirs.steps))
    step_ms = ours.parts_ms["step"][:, -steps:].mean(axis=1)
    stood, lacked_ms = stood[:, -steps:], lacked_ms[:, -steps:]
    more = {}
    for part, left_out in (("exposed", 0.0), ("wait", 0.0), ("in flight", stood)):
        ours_ms, theirs_ms = (
            of.parts_ms["exposed" if part == "in flight" else part][:, -steps:]
            for of in (ours, theirs)
        )
        more[part] = 100 * np.median(theirs_ms - (ours_ms - left_out), axis=1) / step_ms
    for rank in range(ranks):
        print(
            f"{name}: rank {rank}: step {step_ms[rank]:.2f} ms, by torch.profiler exposed "
            f"{more['exposed'][rank]:+.2f} %, wait {more['wait'][rank]:+.2f} % of it; "
            f"{100 * np.median(stood[rank]) / step_ms[rank]:.2f} % after collectives were done, "
            f"{100 * np.median(lacked_ms[rank]) / step_ms[rank]:.2f} % without a core"
        )
    lacking = (ours_calls - their_calls) + (their_calls - ours_calls)
    for (op, size), count in lacking.items():
        print(f"{name}: only one of both has {count} a step of {op} of {size} bytes")
    other = lacking.total()
    most, in_flight = (float(np.abs(more[part]).max()) for part in ("exposed", "in flight"))
    found = [
        at_most(f"{name}: collectives per step that one recording lacks", float(other), 0),
        at_most(f"{name}: difference in exposed time", most, MOST_PERCENT, " %"),
    ]
    if backend == "gloo":  # on a GPU nothing waits for a core
        what = f"{name}: difference in exposed time with collectives in flight"
        found.append(at_most(what, in_flight, MOST_PERCENT, " %"))
    return found


def _read(recorded: Path) -> tuple[WorldDetail, Counter[tuple[str, tuple[int, ...]]]]:
    """Returns a recording's steps, and the collectives of a step by operation and size."""
    result, details = analyse_in_detail(recorded)
    calls: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for found in result.worlds[0].collectives:
        calls[found.op, tuple(found.size_bytes)] += round(found.calls_per_step)
    return details[0], calls


def _kernels_apart(ours: Path, theirs: Path) -> str:
    """Returns how far both recordings of NCCL's kernels lie apart, their clocks aside, in us."""
    with gzip.open(theirs) as file:
        events = json.load(file)["traceEvents"]
    kernels = sorted(
        (event["ts"], event["dur"])
        for event in events
        if event.get("cat") == "kernel" and event["name"].startswith("nccl")
    )
    moved = on_device_timeline(read_trace(ours))
    table = columns.collectives(moved)
    if len(table) != len(kernels):
        return f"{len(table)} collectives, but {len(kernels)} kernels"
    their_start, length = np.array(kernels).T
    order = np.argsort(table.end_ns)
    start_us = start_times(moved, table)[order] / 1e3
    end_us = table.end_ns[order] / 1e3
    end_apart = end_us - (their_start + length)
    end_apart -= np.median(end_apart)
    length_apart = (end_us - start_us) - length
    return "; ".join(
        f"{what} {np.median(values):+.1f} us (|.| at most {np.quantile(np.abs(values), 0.99):.1f} "
        "for 99 %)"
        for what, values in (
            (f"ends of {len(kernels)} kernels apart by", end_apart),
            (f"lengths of {np.median(length):.0f} us longer by", length_apart),
        )
    )


def _stood_still_ms(trace: Path) -> npt.NDArray[np.float64]:
    """Returns time per step in waits whose collective was done, as in ranks without a core."""
    recorded = read_trace(trace)
    steps, waited = columns.steps(recorded), exposures_of(recorded)
    done_ns = columns.collectives(recorded).end_ns[waited.collective]
    until = np.where(waited.collective < 0, waited.begin_ns, done_ns)
    late_ns = np.maximum(0, waited.end_ns - np.maximum(waited.begin_ns, until))
    step = np.searchsorted(steps.begin_ns, waited.begin_ns, side="right") - 1
    inside = step >= 0
    late: npt.NDArray[np.float64] = np.bincount(
        step[inside], weights=late_ns[inside], minlength=len(steps)
    )
    return late / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
