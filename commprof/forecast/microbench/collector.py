"""Measures one rank's rounds, and collects the results of all ranks in a file.

A round is one pass over all sizes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from commprof.analysis.sweeps.sweep import (
    Floats,
    OverlapRow,
    RowKey,
    SweepResult,
    SweepRow,
    Times,
    durations_us,
    make_row,
    overlap_share,
    skews_us,
)
from commprof.analysis.sweeps.sweep_file import write_sweep
from commprof.forecast.microbench.buffers import make_buffers
from commprof.forecast.microbench.calls import ROOT, Call, Side, count_wrong
from commprof.forecast.microbench.hooks import HookBench, make_hook_bench
from commprof.forecast.microbench.measure import (
    OverlapCell,
    TimedCall,
    make_sampled_call,
    pilot_ns,
    samples_per_round,
    take_samples,
    warmup_calls,
)
from commprof.forecast.microbench.operations import DTYPES, HOOK_PREFIX, operation
from commprof.forecast.microbench.plan import BenchPlan, Sweep


@dataclass(frozen=True)
class Cell:
    """Samples of one rank for one size and placement in one round."""

    count: int
    """Number of elements, see `Sweep.counts`."""
    placement: str
    times: Times
    """Begin and end of each sampled call, in ns of CLOCK_MONOTONIC."""
    wrong: int | None
    """Number of wrong elements; None if nothing was checked."""


@dataclass
class SweepRun:
    """One rank's part in a sweep.

    The first round determines the number of calls in each round.
    """

    plan: BenchPlan
    sweep: Sweep
    control: Any
    """Gloo group in which the same ranks agree on the number of calls."""
    _schedule: dict[tuple[int, str], tuple[tuple[int, ...], int]] = field(default_factory=dict)
    _hooks: dict[int, HookBench] = field(default_factory=dict)

    def round(self, turn: int, side: Side, meet: Call) -> Iterator[Cell]:
        """Measures round `turn`, and yields the samples of each size and placement.

        `meet` is the barrier before each sample.
        """
        for count in self.sweep.counts:
            for placement in operation(self.sweep.op).placements:
                if self.sweep.op.startswith(HOOK_PREFIX):
                    timed, wrong = self._hook_call(count, turn, side)
                else:
                    timed, wrong = self._timed_call(count, placement, turn, side)
                times = self._sample(timed, (count, placement), turn, meet)
                yield Cell(count, placement, times, wrong)

    def close(self) -> None:
        """Ends the hooks that the rounds share."""
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
        """Returns a call to time, and the number of wrong elements in its results.

        The number is None if nothing was checked. Only the first round checks results.
        """
        plan, op = self.plan, self.sweep.op
        buffers = make_buffers(
            operation(op), placement, count, side.rank, side.world_size, plan.dtype, side.device
        )
        call = make_sampled_call(op, side, buffers, plan.redop)
        if turn or not plan.check or not operation(op).sized:
            return TimedCall(call), None
        return TimedCall(call), count_wrong(plan, op, count, side, buffers, call)

    def _hook_call(self, count: int, turn: int, side: Side) -> tuple[TimedCall, int | None]:
        """Returns forward and backward to time, and the number of wrong elements in a result.

        The number is None if nothing was checked. All rounds share one model per size, because each
        model's hook has its own process group.
        """
        wrong = None
        if count not in self._hooks:
            hook = self.sweep.op.removeprefix(HOOK_PREFIX)
            bench = make_hook_bench(hook, side.group, count, side.rank, side.device)
            self._hooks[count] = bench
            if turn == 0 and self.plan.check:
                wrong = bench.wrong(side.rank, side.world_size)
        return self._hooks[count].timed(), wrong

    def _slowest(self, call_ns: float) -> float:
        """Returns the largest time of all ranks, so that they take equally many samples."""
        largest = torch.tensor([call_ns], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.control)
        return float(largest)


_WRITE_EVERY_S = 2.0  # writing a long sweep's file takes 0.1 s


@dataclass
class _Rounds:
    durations: list[Floats] = field(default_factory=list)
    skews: list[Floats] = field(default_factory=list)
    wrong: int | None = None


class Collector:
    """Collects the rounds of all ranks, and rewrites the result file often."""

    def __init__(self, plan: BenchPlan, context: dict[str, Any]) -> None:
        self._plan = plan
        self._context = context
        self._rounds: dict[RowKey, _Rounds] = {}
        self._overlap_rows: list[OverlapRow] = []
        self._written = 0.0

    def add(self, sweep: Sweep, ranks: Sequence[Sequence[Cell]], one_clock: bool) -> None:
        """Adds cells of one round.

        `ranks` has a list of cells for each rank; all lists are in the same order. `one_clock` is
        True if all ranks share a clock.
        """
        for cells in zip(*ranks, strict=True):
            key = self._key(sweep, cells[0].count, cells[0].placement)
            rounds = self._rounds.setdefault(key, _Rounds())
            times = [cell.times for cell in cells]
            if not len(times[0].begin_ns):
                continue
            rounds.durations.append(durations_us(times, one_clock))
            if one_clock:
                rounds.skews.append(skews_us(times))
            checked = [cell.wrong for cell in cells if cell.wrong is not None]
            if checked:
                rounds.wrong = (rounds.wrong or 0) + sum(checked)
        if time.monotonic() > self._written + _WRITE_EVERY_S:
            self.write()

    def add_overlap(self, sweep: Sweep, ranks: Sequence[Sequence[OverlapCell]]) -> None:
        """Adds cells of a sweep with --overlap: a list for each rank."""
        for cells in zip(*ranks, strict=True):
            key = self._key(sweep, cells[0].count, cells[0].placement)
            self._overlap_rows.append(_overlap_row(key, cells))
        self.write()

    def write(self) -> None:
        """Writes the results so far."""
        rows = tuple(
            self._row(key, rounds) for key, rounds in self._rounds.items() if rounds.durations
        )
        result = SweepResult(self._context, rows, tuple(self._overlap_rows))
        write_sweep(Path(self._plan.result_path), result)
        self._written = time.monotonic()

    def _row(self, key: RowKey, rounds: _Rounds) -> SweepRow:
        kind = operation(key.op)
        root = ROOT if kind.rooted else -1
        return make_row(key, kind.bus_op, rounds.durations, rounds.skews, rounds.wrong, root)

    def _key(self, sweep: Sweep, count: int, placement: str) -> RowKey:
        kind, plan = operation(sweep.op), self._plan
        elements = max(kind.elements(count, sweep.world_size))
        return RowKey(
            op=sweep.op,
            dtype=plan.dtype if kind.sized else "",
            redop=plan.redop if kind.reduces else "",
            world_size=sweep.world_size,
            backend=plan.backend,
            placement=placement,
            size_bytes=elements * DTYPES[plan.dtype],
            count=count,
        )


def _overlap_row(key: RowKey, cells: Sequence[OverlapCell]) -> OverlapRow:
    """Returns the medians over the samples.

    A sample has the times of the rank with the largest overlapped time, as in IMB-NBC of the Intel
    MPI Benchmarks.
    """
    slowest = np.argmax([cell.overlapped_us for cell in cells], axis=0)

    def of_slowest(name: str) -> Floats:
        times = np.stack([getattr(cell, name) for cell in cells])
        found: Floats = times[slowest, np.arange(len(slowest))]
        return found

    checked = [cell.wrong for cell in cells if cell.wrong is not None]
    pure, alone, compute, overlapped = (
        float(np.median(of_slowest(name)))
        for name in ("pure_us", "compute_alone_us", "compute_us", "overlapped_us")
    )
    return OverlapRow(
        key=key,
        pure_us=pure,
        compute_alone_us=alone,
        compute_us=compute,
        overlapped_us=overlapped,
        overlap=overlap_share(pure, compute, overlapped),
        iterations=len(slowest),
        wrong=sum(checked) if checked else None,
    )
