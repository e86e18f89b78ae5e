"""Taking samples: when each rank began and ended each call, by its own clock, and how many.

The loop runs in C++ where the native module is there and tensors are on the CPU: between two calls
Python takes several microseconds, in which a backend's threads fall asleep. Hooks are backward
passes and stay in Python, as do tensors on a device.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from commprof import _native
from commprof.analysis.sweeps.sweep import Times
from commprof.microbench.buffers import Buffers
from commprof.microbench.calls import ROOT, Call, Side, make_call, no_meeting
from commprof.units import NS_PER_MS

_BUDGET_NS = 200 * NS_PER_MS  # per row, over all rounds
_LEAST, _MOST = 20, 400  # nccl-tests' standard; what a p99 and the result file need at most
_WARMUP_NS = 5 * NS_PER_MS  # per round
_MOST_WARMUP = 5

#: For the result's context.
WARMUP_RULE = "1 to 5 calls per size and round, as many as fit into 5 ms"


def samples_per_round(call_ns: float, rounds: int, asked: int | None) -> tuple[int, ...]:
    """Samples of each round for a call of this length; asked: so many in all, see ``-n``."""
    wanted = asked or min(max(int(_BUDGET_NS / call_ns), _LEAST), _MOST)
    if asked is None:
        wanted = -(-wanted // rounds) * rounds
    return tuple(wanted * (turn + 1) // rounds - wanted * turn // rounds for turn in range(rounds))


def warmup_calls(call_ns: float, asked: int | None) -> int:
    """Calls before the samples of a round; asked: see ``-w``."""
    if asked is not None:
        return asked
    return min(max(int(_WARMUP_NS / call_ns), 1), _MOST_WARMUP)


def loop_language(on_cpu: bool) -> str:
    """What takes the samples of operations, for the result's context."""
    return "C++" if on_cpu and _native.native is not None else "Python"


def make_sampled_call(op: str, side: Side, buffers: Buffers, redop: str) -> Call:
    """As `calls.make_call`, in C++ where that can be."""
    native = _native.native
    if native is None or side.device != "cpu":
        return make_call(op, side, buffers, redop)
    call: Call = native.CollectiveCall(side.group, op, buffers.source, buffers.target, redop, ROOT)
    return call


def sample_in_cpp(call: Call, meet: Call, iterations: int) -> Times | None:
    """Times of one rank's calls; None where one of the two is not of C++."""
    met: Any = None if meet is no_meeting else meet
    if not _is_native(call) or not (met is None or _is_native(met)):
        return None
    begin_ns, end_ns = call.sample(iterations, met)  # type: ignore[attr-defined]
    return Times(np.array(begin_ns, np.int64), np.array(end_ns, np.int64))


def _is_native(call: Any) -> bool:
    native = _native.native
    return native is not None and isinstance(call, native.CollectiveCall)


@dataclass(frozen=True)
class TimedCall:
    """What is called once per sample."""

    call: Call
    """Timed."""
    prepare: Call | None = None
    """Called before each call, before the ranks meet; not timed."""

    def repeat(self, times: int) -> None:
        """Calls it untimed."""
        for _ in range(times):
            if self.prepare is not None:
                self.prepare()
            self.call()


def take_samples(timed: TimedCall, meet: Call, iterations: int) -> Times:
    """Times of one rank's calls, in ns of CLOCK_MONOTONIC. meet: called before each of them."""
    in_cpp = None if timed.prepare else sample_in_cpp(timed.call, meet, iterations)
    if in_cpp is not None:
        return in_cpp
    begin_ns, end_ns = [0] * iterations, [0] * iterations
    call, prepare, now = timed.call, timed.prepare, time.monotonic_ns
    with _no_collector():
        for i in range(iterations):
            if prepare is not None:
                prepare()
            meet()
            begin_ns[i] = now()
            call()
            end_ns[i] = now()
    return Times(np.array(begin_ns, np.int64), np.array(end_ns, np.int64))


def pilot_ns(timed: TimedCall, meet: Call) -> float:
    """Median of a few calls of this rank, after two that nobody times."""
    timed.repeat(2)
    times = take_samples(timed, meet, 3)
    return float(np.median(times.end_ns - times.begin_ns))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Python's garbage collector would land in one sample."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
