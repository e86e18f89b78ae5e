"""Measures when each rank begins and ends each call, by the rank's own clock.

The measuring loop runs in C++ if the native module is present and the tensors are on the CPU.
Python takes several microseconds between two calls, and a backend's threads fall asleep in this
time. For tensors on a device, for hooks and for overlap, the loop runs in Python.

Overlap is measured as in IMB-NBC. Each sample has three measurements: the collective alone, the
compute alone, and both together. In the third measurement, the collective is issued, the compute
runs, and a wait for the collective follows. As in IMB, the compute consists of products of a 100 x
100 matrix and a vector. The compute takes about as long as the collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from commprof import _native
from commprof.analysis.sweeps.sweep import Floats, Times
from commprof.forecast.microbench.buffers import Buffers, make_buffers
from commprof.forecast.microbench.calls import (
    ROOT,
    Call,
    Side,
    count_wrong,
    finish,
    make_call,
    make_start,
    no_meeting,
)
from commprof.forecast.microbench.operations import operation
from commprof.forecast.microbench.plan import BenchPlan
from commprof.memory import uncollected
from commprof.units import NS_PER_MS

_BUDGET_NS = 200 * NS_PER_MS  # time for the samples of a row in all rounds
_LEAST = 20  # samples of a row; nccl-tests' default
_MOST = 400  # samples of a row; enough for a p99, and the result file stays small
_WARMUP_NS = 5 * NS_PER_MS  # time for the warm-up calls of a row in a round
_MOST_WARMUP = 5

WARMUP_RULE = "1 to 5 calls per row and round, as many as fit into 5 ms"


def samples_per_round(call_ns: float, rounds: int, asked: int | None) -> tuple[int, ...]:
    """Returns the number of samples in each round, for calls that take ``call_ns``.

    ``asked`` is the total number of samples, from option -n. If ``asked`` is None, the samples take
    about 0.2 s, but their number is between 20 and about 400.
    """
    wanted = asked or min(max(int(_BUDGET_NS / call_ns), _LEAST), _MOST)
    if asked is None:
        wanted = -(-wanted // rounds) * rounds
    return tuple(wanted * (turn + 1) // rounds - wanted * turn // rounds for turn in range(rounds))


def warmup_calls(call_ns: float, asked: int | None) -> int:
    """Returns the number of warm-up calls before the samples of a round.

    ``asked`` is the value of option -w. If ``asked`` is None, the result is 1 to 5 calls, as many
    as fit into 5 ms.
    """
    if asked is not None:
        return asked
    return min(max(int(_WARMUP_NS / call_ns), 1), _MOST_WARMUP)


def loop_language(on_cpu: bool) -> str:
    """Returns the language of the loop that takes samples."""
    return "C++" if on_cpu and _native.tune_error is None else "Python"


def make_sampled_call(op: str, side: Side, buffers: Buffers, redop: str) -> Call:
    """Makes a call as `calls.make_call` does, in C++ if possible."""
    if side.device != "cpu" or _native.tune_error is not None:
        return make_call(op, side, buffers, redop)
    native = _native.tune
    call: Call = native.CollectiveCall(side.group, op, buffers.source, buffers.target, redop, ROOT)
    return call


def sample_in_cpp(call: Call, meet: Call, iterations: int) -> Times | None:
    """Times one rank's calls in C++; None if the call or the barrier is in Python."""
    met: Any = None if meet is no_meeting else meet
    if not _is_native(call) or not (met is None or _is_native(met)):
        return None
    begin_ns, end_ns = call.sample(iterations, met)  # type: ignore[attr-defined]
    return Times(np.array(begin_ns, np.int64), np.array(end_ns, np.int64))


def _is_native(call: Any) -> bool:
    return _native.tune_error is None and isinstance(call, _native.tune.CollectiveCall)


@dataclass(frozen=True)
class TimedCall:
    """A call to be timed once per sample, with optional untimed preparation."""

    call: Call
    prepare: Call | None = None
    """Untimed preparation, which runs before each call and its barrier."""

    def repeat(self, times: int) -> None:
        """Runs preparation and call a number of times without timing."""
        for _ in range(times):
            if self.prepare is not None:
                self.prepare()
            self.call()


def take_samples(timed: TimedCall, meet: Call, iterations: int) -> Times:
    """Times one rank's calls in ns of CLOCK_MONOTONIC; `meet` is the barrier before each call."""
    in_cpp = None if timed.prepare else sample_in_cpp(timed.call, meet, iterations)
    if in_cpp is not None:
        return in_cpp
    begin_ns, end_ns = [0] * iterations, [0] * iterations
    call, prepare, now = timed.call, timed.prepare, time.monotonic_ns
    with uncollected():  # a garbage collection would lengthen a sample
        for i in range(iterations):
            if prepare is not None:
                prepare()
            meet()
            begin_ns[i] = now()
            call()
            end_ns[i] = now()
    return Times(np.array(begin_ns, np.int64), np.array(end_ns, np.int64))


def pilot_ns(timed: TimedCall, meet: Call) -> float:
    """Returns the median time of a few calls of this rank, after two untimed calls."""
    timed.repeat(2)
    times = take_samples(timed, meet, 3)
    return float(np.median(times.end_ns - times.begin_ns))


_ORDER = 100
_CALIBRATION = 200


@dataclass(frozen=True)
class OverlapCell:
    """Overlap samples of one size and rank, in us."""

    count: int
    """Number of elements, one of `Sweep.counts`."""
    placement: str
    """``in_place`` if the operation supports it, so that no copy is timed; else
    ``out_of_place``."""
    pure_us: Floats
    """Time of the collective alone."""
    compute_alone_us: Floats
    """Time of the compute with no collective in flight."""
    compute_us: Floats
    """Time of the compute while the collective is in flight."""
    overlapped_us: Floats
    """Time from the issue of the collective to the end of the wait."""
    wrong: int | None = None
    """Number of wrong elements; None if nothing was checked."""


class Compute:
    """Compute load for one core. A unit is a matrix-vector product of a few microseconds."""

    def __init__(self) -> None:
        self._matrix = torch.full((_ORDER, _ORDER), 1.0 / _ORDER)
        self._vector = torch.ones(_ORDER)
        self._result = torch.empty(_ORDER)
        self.run(_CALIBRATION)
        begin = time.monotonic_ns()
        self.run(_CALIBRATION)
        self._unit_ns = (time.monotonic_ns() - begin) / _CALIBRATION

    def units(self, duration_ns: float) -> int:
        """Returns the number of units that take about the given time; at least 1."""
        return max(round(duration_ns / self._unit_ns), 1)

    def run(self, units: int) -> None:
        """Runs the given number of units."""
        matrix, vector, result = self._matrix, self._vector, self._result
        for _ in range(units):
            torch.mv(matrix, vector, out=result)


def measure_overlap(
    plan: BenchPlan, op: str, count: int, side: Side, meet: Call, control: object
) -> OverlapCell:
    """Samples the overlap for one size.

    ``meet`` is the barrier before each measurement. ``control`` is a gloo group of the same ranks,
    in which they agree on the number of samples.
    """
    placement = operation(op).placements[-1]
    buffers = make_buffers(
        operation(op), placement, count, side.rank, side.world_size, plan.dtype, side.device
    )
    call = make_call(op, side, buffers, plan.redop)
    wrong = count_wrong(plan, op, count, side, buffers, call) if plan.check else None
    issue = make_start(op, side, buffers, plan.redop, is_async=True)
    compute = Compute()
    slowest = torch.tensor([pilot_ns(TimedCall(call), meet)], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=control)
    pure_ns = max(float(slowest), 1.0)
    units = compute.units(pure_ns)
    (iterations,) = samples_per_round(3 * pure_ns, 1, plan.iterations)
    for _ in range(warmup_calls(pure_ns, plan.warmup)):
        call()
        finish(issue())
    rows = [_sample(call, issue, compute, units, meet) for _ in range(iterations)]
    pure, alone, computed, overlapped = np.array(rows, np.float64).T / 1e3
    return OverlapCell(count, placement, pure, alone, computed, overlapped, wrong)


def _sample(
    call: Call,
    issue: Callable[[], Any],
    compute: Compute,
    units: int,
    meet: Call,
) -> tuple[int, int, int, int]:
    """Takes one overlap sample.

    Returns four times in ns: of the collective alone, of the compute alone, of the compute during
    the collective, and from the issue of this collective to the end of the wait.
    """
    now = time.monotonic_ns
    meet()
    begin = now()
    call()
    pure = now() - begin
    meet()
    begin = now()
    compute.run(units)
    alone = now() - begin
    meet()
    begin = now()
    works = issue()
    issued = now()
    compute.run(units)
    computed = now()
    finish(works)
    return pure, alone, computed - issued, now() - begin
