"""Communication under compute: what of a collective a rank's own work hides, and at what cost.

As IMB-NBC does it: the collective alone, then issued, followed by compute of about the same
length, then waited for. The compute is IMB's too, a 100 x 100 matrix times a vector.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from commprof.analysis.sweeps.sweep import Floats
from commprof.microbench.buffers import make_buffers
from commprof.microbench.calls import Call, Side, count_wrong, finish, make_call, make_start
from commprof.microbench.measure import TimedCall, pilot_ns, samples_per_round, warmup_calls
from commprof.microbench.operations import operation
from commprof.microbench.plan import Plan

_ORDER = 100
_CALIBRATION = 200


@dataclass(frozen=True)
class OverlapCell:
    """One size's samples of one rank, in us."""

    count: int
    """Elements, see `Sweep.counts`."""
    placement: str
    """In place where the operation can be, so that no copy is in the time."""
    pure_us: Floats
    """The collective alone."""
    compute_alone_us: Floats
    """The compute with nothing under way."""
    compute_us: Floats
    """The compute while the collective is under way."""
    overlapped_us: Floats
    """Duration from issue to the end of the wait."""
    wrong: int | None = None
    """Wrong elements of the checked calls; None: nothing was checked."""


class Compute:
    """Work for one core, in units of a few microseconds that fit the first cache."""

    def __init__(self) -> None:
        """Finds out how long a unit takes here."""
        self._matrix = torch.full((_ORDER, _ORDER), 1.0 / _ORDER)
        self._vector = torch.ones(_ORDER)
        self._result = torch.empty(_ORDER)
        self.run(_CALIBRATION)
        begin = time.monotonic_ns()
        self.run(_CALIBRATION)
        self._unit_ns = (time.monotonic_ns() - begin) / _CALIBRATION

    def units(self, duration_ns: float) -> int:
        """How many take about that long; 1 at least."""
        return max(round(duration_ns / self._unit_ns), 1)

    def run(self, units: int) -> None:
        """Computes."""
        matrix, vector, result = self._matrix, self._vector, self._result
        for _ in range(units):
            torch.mv(matrix, vector, out=result)


def measure_overlap(
    plan: Plan, op: str, count: int, side: Side, meet: Call, control: object
) -> OverlapCell:
    """All samples of one size: the collective alone, the compute alone, and both, in turn."""
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
    """In ns: pure, compute alone, compute under the collective, all of that."""
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
