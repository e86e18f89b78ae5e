"""From the ranks' traces to one number per block: ``[candidate, round]`` for each figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.step.breakdown import breakdown
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.compressions import compressions
from commprof.trace.reader import Trace
from commprof.trace.schema import STAGES
from commprof.trials.schedule import Schedule

Floats = npt.NDArray[np.float64]

PARTS = ("data", "forward", "backward", "exposed", "optimizer", "other")
#: Per step of one rank, in this order; bytes are bytes, qualities are ratios, all else is in ns.
_COLUMNS = (
    *("wall", *PARTS, "hidden", *STAGES, "compressed_wire", "plain_ring"),
    *("relative_error", "cosine", "loss"),
)
#: Steps in each half of a block that are compared.
_LEAST_HALF = 2
#: Columns for which a step counts although it is left out of times: see ``_over_block``.
_WHOLE_BLOCK = ("relative_error", "cosine", "loss")


@dataclass(frozen=True)
class Figures:
    """Per block, ``[candidate, round]``; only rounds in which every block is complete."""

    #: Median measured step on the rank that is the candidate's slowest over all rounds. The slowest
    #: of each round would be by chance another one, and longer than either rank's steps are.
    step_ns: Floats
    #: Median step in the later half of a block's measured steps over that in the earlier half, each
    #: step on its slowest rank; NaN in blocks of fewer than 4.
    later_over_earlier: Floats
    #: By column name, with the units of ``_COLUMNS``; see ``_over_block``.
    columns: dict[str, Floats]

    @property
    def rounds(self) -> int:
        """Complete ones."""
        return int(self.step_ns.shape[1])


def figures(traces: list[Trace], schedule: Schedule, first_step: int) -> Figures:
    """Reads every rank's steps.

    Args:
        traces: of the ranks.
        schedule: that they followed.
        first_step: number that the trial's first step has in the traces.
    """
    tables = [_steps_of(trace, schedule.steps, first_step) for trace in traces]
    shape = (schedule.candidates, schedule.rounds)
    medians_ns = np.full((*shape, len(traces)), np.nan)
    settling = np.full(shape, np.nan)
    found = {name: np.full(shape, np.nan) for name in _COLUMNS}
    for block in schedule.blocks:
        at = block.candidate, block.round
        measured = slice(block.measured, block.end)
        walls = [table["wall"][measured] for table in tables]
        if any(np.isnan(wall).any() for wall in walls):
            continue  # cut short, or records were dropped
        medians_ns[at] = [float(np.median(wall)) for wall in walls]
        settling[at] = _later_over_earlier(np.max(walls, axis=0))
        for name in _COLUMNS:
            begin = block.begin if name in _WHOLE_BLOCK else block.measured
            rows = np.stack([table[name][begin : block.end] for table in tables])
            found[name][at] = _over_block(name, rows)
    complete = ~np.isnan(medians_ns).any(axis=(0, 2))
    return Figures(
        _of_slowest(medians_ns[:, complete]),
        settling[:, complete],
        {name: value[:, complete] for name, value in found.items()},
    )


def _later_over_earlier(step_ns: Floats) -> float:
    half = len(step_ns) // 2
    if half < _LEAST_HALF:
        return np.nan
    return float(np.median(step_ns[-half:]) / np.median(step_ns[:half]))


def _of_slowest(medians_ns: Floats) -> Floats:
    """``[candidate, round]`` of ``[candidate, round, rank]``: see ``Figures.step_ns``."""
    if not medians_ns.shape[1]:
        return medians_ns[:, :, 0]
    slowest = np.median(medians_ns, axis=1).argmax(axis=1)
    return np.take_along_axis(medians_ns, slowest[:, None, None], axis=2)[:, :, 0]


def no_figures(schedule: Schedule) -> Figures:
    """Of no complete round."""
    none = np.zeros((schedule.candidates, 0))
    return Figures(none, none, dict.fromkeys(_COLUMNS, none))


def _over_block(name: str, rows: Floats) -> float:
    """One figure from the block's ``[rank, step]``: median over steps, mean over ranks.

    The first loss of a block comes before its first update: it says nothing of the candidate.
    Errors are measured in few steps, and known for these only.
    """
    if name == "loss":
        rows = rows[:, 1:]
        return float(rows.mean()) if rows.size and not np.isnan(rows).any() else np.nan
    if name in _WHOLE_BLOCK:
        known = rows[~np.isnan(rows)]
        return float(known.mean()) if known.size else np.nan
    return float(np.median(rows, axis=1).mean())


def _steps_of(trace: Trace, count: int, first_step: int) -> dict[str, Floats]:
    """One rank's columns, one row per step of the trial; NaN where a step was not recorded."""
    trace = on_device_timeline(trace)
    table = {name: np.full(count, np.nan) for name in _COLUMNS}
    split = breakdown(trace, columns.collectives(trace), None, trace.world_size)
    row = split.step - first_step
    inside = (row >= 0) & (row < count)
    for name in ("wall", *PARTS, "hidden"):
        table[name][row[inside]] = getattr(split, f"{name}_ns")[inside]
    steps = columns.steps(trace)
    _add_bytes(trace, table, steps, first_step)
    losses = _losses(trace.metadata, count)
    table["loss"][: len(losses)] = losses
    return table


def _losses(metadata: dict[str, Any], count: int) -> list[float]:
    told = metadata.get("trial_losses", {})
    values = told.get("values", [])[:count]
    return [np.nan if value is None else float(value) for value in values]


def _add_bytes(
    trace: Trace, table: dict[str, Floats], steps: columns.Steps, first_step: int
) -> None:
    """What buckets and compressors say, summed by the step in which the bucket was ready."""
    count = len(table["wall"])
    buckets, done = columns.buckets(trace), compressions(trace)
    bucket_step = _trial_step(steps, buckets.ready_ns, first_step, count)
    sizes = buckets.bytes.astype(np.float64)
    compressed = np.isin(buckets.op_id, done.op_id)
    ring = 2 * (trace.world_size - 1) / trace.world_size
    seen = np.isfinite(table["wall"])
    plain = ~compressed & (bucket_step >= 0)
    table["plain_ring"][seen] = ring * _sums(count, bucket_step[plain], sizes[plain])[seen]
    of_bucket = columns.look_up(done.op_id, buckets.op_id, np.arange(1, len(buckets) + 1)) - 1
    at = np.where(of_bucket >= 0, np.append(bucket_step, -1)[of_bucket], -1)
    used = at >= 0
    sums = {name: done.stage_ns[i] for i, name in enumerate(STAGES)}
    for name, values in {**sums, "compressed_wire": done.wire_bytes}.items():
        table[name][seen] = _sums(count, at[used], values[used].astype(np.float64))[seen]
    weight = np.append(sizes, 0.0)[of_bucket]
    known = used & ~np.isnan(done.relative_error)
    total = _sums(count, at[known], weight[known])
    for name in ("relative_error", "cosine"):
        weighted = _sums(count, at[known], (getattr(done, name) * weight)[known])
        table[name] = np.divide(weighted, total, out=np.full(count, np.nan), where=total > 0)


def _trial_step(steps: columns.Steps, time_ns: Ints, first_step: int, count: int) -> Ints:
    """Step of the trial at each time; -1 outside of it."""
    if len(steps) == 0:
        return np.full(len(time_ns), -1, dtype=np.int64)
    row = np.searchsorted(steps.begin_ns, time_ns, side="right") - 1
    inside = (row >= 0) & (time_ns < steps.end_ns[row])
    step = steps.index[row] - first_step
    return np.where(inside & (step >= 0) & (step < count), step, -1).astype(np.int64)


def _sums(count: int, row: Ints, values: Floats) -> Floats:
    return np.bincount(row, weights=values, minlength=count).astype(np.float64)
