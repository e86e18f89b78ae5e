"""Calls of an operation checked by values whose result is known in closed form."""

from __future__ import annotations

from commprof.microbench.calls import Call, Side
from commprof.microbench.patterns import Pattern
from commprof.microbench.plan import Plan
from commprof.microbench.timing.buffers import Buffers


def count_wrong(plan: Plan, op: str, count: int, side: Side, buffers: Buffers, call: Call) -> int:
    """Wrong elements at this rank in `plan.check` calls; afterwards the buffers hold zeros."""
    pattern = Pattern(op, plan.redop, plan.dtype, side.world_size)
    expected = pattern.expected(side.rank, count)
    wrong = 0
    for _ in range(plan.check):
        buffers.fill(pattern, side.rank)
        call()
        wrong += pattern.wrong(buffers.target, expected)
    buffers.clear()
    return wrong
