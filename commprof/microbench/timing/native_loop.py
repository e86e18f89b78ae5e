"""The loop of samples in C++, where the native module is there and tensors are on the CPU.

Between two calls Python takes several microseconds, in which a backend's threads fall asleep.
Operations run there; hooks are backward passes and stay in Python, as do tensors on a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from commprof import _native
from commprof.analysis.sweeps.sweep_samples import Times
from commprof.microbench.calls import ROOT, Call, Side, make_call, no_meeting
from commprof.microbench.timing.buffers import Buffers


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
