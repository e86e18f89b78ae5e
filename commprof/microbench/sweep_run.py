"""One rank's part in one sweep: rounds over all sizes, each a table of times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from commprof.analysis.sweeps.sweep import Times
from commprof.microbench.buffers import make_buffers
from commprof.microbench.calls import Call, Side, count_wrong
from commprof.microbench.hooks import HookBench, make_hook_bench
from commprof.microbench.measure import (
    TimedCall,
    make_sampled_call,
    pilot_ns,
    samples_per_round,
    take_samples,
    warmup_calls,
)
from commprof.microbench.operations import HOOK_PREFIX, operation
from commprof.microbench.plan import Plan, Sweep


@dataclass(frozen=True)
class Cell:
    """One row's samples of one rank in one round."""

    count: int
    """Elements, see `Sweep.counts`."""
    placement: str
    """Out of place or in place."""
    times: Times
    """Times of its calls."""
    wrong: int | None
    """Wrong elements of the checked calls; None where this round checked nothing."""


@dataclass
class SweepRun:
    """A member's part in all rounds of one sweep; what it knows from the first stays."""

    plan: Plan
    sweep: Sweep
    control: Any
    """A gloo group of the same ranks, for agreement."""
    _schedule: dict[tuple[int, str], tuple[tuple[int, ...], int]] = field(default_factory=dict)
    _hooks: dict[int, HookBench] = field(default_factory=dict)

    def round(self, turn: int, side: Side, meet: Call) -> Iterator[Cell]:
        """Measures every size once more. meet: see `take_samples`."""
        for count in self.sweep.counts:
            for placement in operation(self.sweep.op).placements:
                if self.sweep.op.startswith(HOOK_PREFIX):
                    timed, wrong = self._hook_call(count, turn, side)
                else:
                    timed, wrong = self._timed_call(count, placement, turn, side)
                times = self._sample(timed, (count, placement), turn, meet)
                yield Cell(count, placement, times, wrong)

    def close(self) -> None:
        """Ends the groups and hooks that the rounds shared."""
        for bench in self._hooks.values():
            bench.close()

    def _sample(self, timed: TimedCall, row: tuple[int, str], turn: int, meet: Call) -> Times:
        if row not in self._schedule:
            call_ns = max(self._slowest(pilot_ns(timed, meet)), 1.0)
            rounds, asked = self.plan.rounds, self.plan.iterations
            self._schedule[row] = (
                samples_per_round(call_ns, rounds, asked),
                warmup_calls(call_ns, self.plan.warmup),
            )
        iterations, warmup = self._schedule[row]
        timed.repeat(warmup)
        return take_samples(timed, meet, iterations[turn])

    def _timed_call(
        self, count: int, placement: str, turn: int, side: Side
    ) -> tuple[TimedCall, int | None]:
        """The call on fresh buffers; in the first round it has been checked."""
        plan, op = self.plan, self.sweep.op
        buffers = make_buffers(
            operation(op), placement, count, side.rank, side.world_size, plan.dtype, side.device
        )
        call = make_sampled_call(op, side, buffers, plan.redop)
        if turn or not plan.check or not operation(op).sized:
            return TimedCall(call), None
        return TimedCall(call), count_wrong(plan, op, count, side, buffers, call)

    def _hook_call(self, count: int, turn: int, side: Side) -> tuple[TimedCall, int | None]:
        """A model per size for all rounds: its hook has a process group of its own."""
        wrong = None
        if count not in self._hooks:
            hook = self.sweep.op.removeprefix(HOOK_PREFIX)
            bench = make_hook_bench(hook, side.group, count, side.rank, side.device)
            self._hooks[count] = bench
            if turn == 0 and self.plan.check:
                wrong = bench.wrong(side.rank, side.world_size)
        return self._hooks[count].timed(), wrong

    def _slowest(self, call_ns: float) -> float:
        """The largest of all ranks' times: they must take equally many samples."""
        largest = torch.tensor([call_ns], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.control)
        return float(largest)
