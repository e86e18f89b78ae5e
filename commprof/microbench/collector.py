"""Rank 0's side: what all ranks measured becomes rows, and rows become the result file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from commprof.analysis.sweeps.sweep import (
    Floats,
    OverlapRow,
    RowKey,
    SweepResult,
    SweepRow,
    durations_us,
    make_row,
    overlap_share,
    skews_us,
)
from commprof.analysis.sweeps.sweep_file import write_sweep
from commprof.microbench.calls import ROOT
from commprof.microbench.operations import DTYPES, operation
from commprof.microbench.overlap import OverlapCell
from commprof.microbench.plan import Plan, Sweep
from commprof.microbench.sweep_run import Cell

_WRITE_EVERY_S = 2.0  # a long sweep's file takes a tenth of a second


@dataclass
class _Rounds:
    """One row's samples so far."""

    durations: list[Floats] = field(default_factory=list)
    skews: list[Floats] = field(default_factory=list)
    wrong: int | None = None


class Collector:
    """Gathers rounds and keeps the file up to date, so that a failure loses one round."""

    def __init__(self, plan: Plan, context: dict[str, Any]) -> None:
        """Context: see `SweepResult`."""
        self._plan = plan
        self._context = context
        self._rounds: dict[RowKey, _Rounds] = {}
        self._overlap_rows: list[OverlapRow] = []
        self._written = 0.0

    def add(self, sweep: Sweep, ranks: Sequence[Sequence[Cell]], one_clock: bool) -> None:
        """One round of a sweep: the cells of every member, in the same order."""
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
        """One size of a sweep with --overlap: the cells of every member."""
        for cells in zip(*ranks, strict=True):
            key = self._key(sweep, cells[0].count, cells[0].placement)
            self._overlap_rows.append(_overlap_row(key, cells))
        self.write()

    def write(self) -> None:
        """Writes what there is."""
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
    """Per sample the times of the rank with the largest t_ovrl, as IMB does; then medians."""
    slowest = np.argmax([cell.overlapped_us for cell in cells], axis=0)

    def of_slowest(name: str) -> Floats:
        return np.choose(slowest, [getattr(cell, name) for cell in cells])

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
