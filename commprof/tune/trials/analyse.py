"""Analyses a trial from the traces of one world size.

A block is a series of consecutive steps with one candidate. A round has one block for each
candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.collectives.traffic import ring_bytes, sent_bytes
from commprof.analysis.step.breakdown import breakdown
from commprof.analysis.step.measured import trial_of
from commprof.stats.intervals import (
    CONFIDENCE,
    MIN_ROUNDS,
    Interval,
    center,
    interval_of,
    mean_of_rounds,
    ratio_of_rounds,
    resamples,
    typical_of_rounds,
)
from commprof.trace import columns
from commprof.trace.columns import Ints, compressions
from commprof.trace.lookup import look_up, row_containing
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import OPS, STAGES
from commprof.tune.trials.break_even import BreakEvenCosts, break_even, no_break_even
from commprof.tune.trials.candidates import BASELINE, CONTROL, HEADROOM, Candidate
from commprof.tune.trials.plan import TrialPlan, TrialSchedule, parse_trial
from commprof.tune.trials.result import BreakEven, CandidateResult, StepShare, TrialResult
from commprof.tune.trials.verdict import TrialSetting, incomplete, judge
from commprof.units import NS_PER_MS, ns_to_ms

Floats = npt.NDArray[np.float64]

PARTS = ("data", "forward", "backward", "exposed", "optimizer", "other")
#: Columns of a rank's table, which has one row per step. Times are in ns. ``compressed_wire`` and
#: ``plain_ring`` are in bytes. ``relative_error``, ``cosine`` and ``loss`` have no unit.
_COLUMNS = (
    *("wall", *PARTS, "hidden", *STAGES, "compressed_wire", "plain_ring"),
    *("relative_error", "cosine", "loss"),
)
_GATHER, _SCATTER, _REDUCE = map(
    OPS.index, ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
)
#: The halves of a block are compared only if each half has at least this many steps.
_LEAST_HALF = 2
#: Columns whose figures also use a block's warm-up steps.
_WHOLE_BLOCK = ("relative_error", "cosine", "loss")


@dataclass(frozen=True)
class Figures:
    """Arrays of figures with one value per block: ``[candidate, round]``.

    Rounds with an incomplete block are left out.
    """

    #: Median time of a block's measured steps, on the candidate's slowest rank. This rank is chosen
    #: once for all rounds: a choice in each round would make the times too long.
    step_ns: Floats
    #: Median step time in the second half of a block's measured steps, divided by the median in the
    #: first half. The time of each step is that of the rank that is slowest in this step. NaN if a
    #: block has fewer than 4 measured steps.
    later_over_earlier: Floats
    #: One array for each name in ``_COLUMNS``, in the same unit.
    columns: dict[str, Floats]

    @property
    def rounds(self) -> int:
        """Number of complete rounds."""
        return int(self.step_ns.shape[1])


def figures(
    traces: list[Trace], schedule: TrialSchedule, first_step: int, is_sharded: bool = False
) -> Figures:
    """Computes the figures from every rank's steps.

    Args:
        traces: traces of all ranks.
        schedule: schedule that the ranks followed.
        first_step: index of the trial's first step in the traces.
        is_sharded: True if FSDP2 models took part. The bytes of FSDP2's collectives are then added
            to the bytes sent.
    """
    tables = [_steps_of(trace, schedule.steps, first_step, is_sharded) for trace in traces]
    shape = (schedule.candidates, schedule.rounds)
    medians_ns = np.full((*shape, len(traces)), np.nan)
    settling = np.full(shape, np.nan)
    columns_of = {name: np.full(shape, np.nan) for name in _COLUMNS}
    for block in schedule.blocks:
        at = block.candidate, block.round
        measured = slice(block.measured, block.end)
        walls = [table["wall"][measured] for table in tables]
        if any(np.isnan(wall).any() for wall in walls):
            continue  # the block was cut short, or records were dropped
        medians_ns[at] = [float(np.median(wall)) for wall in walls]
        settling[at] = _later_over_earlier(np.max(walls, axis=0))
        for name in _COLUMNS:
            begin = block.begin if name in _WHOLE_BLOCK else block.measured
            rows = np.stack([table[name][begin : block.end] for table in tables])
            columns_of[name][at] = _over_block(name, rows)
    complete = ~np.isnan(medians_ns).any(axis=(0, 2))
    return Figures(
        _of_slowest(medians_ns[:, complete]),
        settling[:, complete],
        {name: value[:, complete] for name, value in columns_of.items()},
    )


def _later_over_earlier(step_ns: Floats) -> float:
    half = len(step_ns) // 2
    if half < _LEAST_HALF:
        return np.nan
    return float(np.median(step_ns[-half:]) / np.median(step_ns[:half]))


def _of_slowest(medians_ns: Floats) -> Floats:
    if not medians_ns.shape[1]:
        return medians_ns[:, :, 0]
    slowest = np.median(medians_ns, axis=1).argmax(axis=1)
    return np.take_along_axis(medians_ns, slowest[:, None, None], axis=2)[:, :, 0]


def no_figures(schedule: TrialSchedule) -> Figures:
    """Returns empty figures, for a trial without a complete round."""
    none = np.zeros((schedule.candidates, 0))
    return Figures(none, none, dict.fromkeys(_COLUMNS, none))


def _over_block(name: str, rows: Floats) -> float:
    """Computes one figure of a block from its values, ``[rank, step]``.

    Times and bytes: the mean over ranks of each rank's median over steps. Losses and errors: the
    mean. A block's first loss is left out, because it precedes the candidate's first update.
    """
    if name == "loss":
        rows = rows[:, 1:]
        return float(rows.mean()) if rows.size and not np.isnan(rows).any() else np.nan
    if name in _WHOLE_BLOCK:
        known_rows = rows[~np.isnan(rows)]
        return float(known_rows.mean()) if known_rows.size else np.nan
    return float(np.median(rows, axis=1).mean())


def _steps_of(trace: Trace, count: int, first_step: int, is_sharded: bool) -> dict[str, Floats]:
    """Returns a rank's columns with one row per step of the trial; NaN if not recorded."""
    trace = on_device_timeline(trace)
    table = {name: np.full(count, np.nan) for name in _COLUMNS}
    issued = columns.collectives(trace)
    split = breakdown(trace, issued, None, trace.world_size)
    row = split.step - first_step
    inside = (row >= 0) & (row < count)
    for name in ("wall", *PARTS, "hidden"):
        table[name][row[inside]] = split.part_ns(name)[inside]
    steps = columns.steps(trace)
    _add_bytes(trace, table, steps, first_step)
    if is_sharded:
        table["plain_ring"] += _sharded_bytes(trace, issued, steps, first_step, count)
    losses = _losses(trace.metadata, count)
    table["loss"][: len(losses)] = losses
    return table


def _losses(metadata: dict[str, Any], count: int) -> list[float]:
    losses = metadata.get("trial_losses", {})
    values = losses.get("values", [])[:count]
    return [np.nan if value is None else float(value) for value in values]


def _add_bytes(
    trace: Trace, table: dict[str, Floats], steps: columns.Steps, first_step: int
) -> None:
    """Adds a bucket's figures to the step in which the bucket became ready."""
    count = len(table["wall"])
    buckets, done = columns.buckets(trace), compressions(trace)
    bucket_step = _trial_step(steps, buckets.ready_ns, first_step, count)
    sizes = buckets.bytes.astype(np.float64)
    compressed = np.isin(buckets.op_id, done.op_id)
    ring = ring_bytes(trace, buckets, trace.world_size)
    seen = np.isfinite(table["wall"])
    plain = ~compressed & (bucket_step >= 0)
    table["plain_ring"][seen] = _sums(count, bucket_step[plain], ring[plain])[seen]
    of_bucket = look_up(done.op_id, buckets.op_id, np.arange(1, len(buckets) + 1)) - 1
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


def _sharded_bytes(
    trace: Trace, issued: columns.Collectives, steps: columns.Steps, first_step: int, count: int
) -> Floats:
    """Returns the bytes that a rank sends per step in FSDP2's collectives.

    On gloo, torch runs a reduce-scatter as an all-reduce, which sends twice as much.
    """
    in_step = _trial_step(steps, issued.issue_ns, first_step, count)
    ops = [_GATHER, _SCATTER]
    if not len(columns.buckets(trace)):  # without DDP's buckets, the all-reduces are FSDP2's
        ops.append(_REDUCE)
    used = (in_step >= 0) & np.isin(issued.op, ops)
    sent = sent_bytes(trace, issued)
    on_gloo = [group.id for group in trace.groups.values() if group.backend == "gloo"]
    sent[(issued.op == _SCATTER) & np.isin(issued.group, on_gloo)] *= 2
    return _sums(count, in_step[used], sent[used])


def _trial_step(steps: columns.Steps, time_ns: Ints, first_step: int, count: int) -> Ints:
    """Returns the trial's step at each time, counted from 0; -1 if outside the trial."""
    row = row_containing(steps.begin_ns, steps.end_ns, time_ns)
    step = np.append(steps.index, -1)[row] - first_step
    return np.where((row >= 0) & (step >= 0) & (step < count), step, -1).astype(np.int64)


def _sums(count: int, row: Ints, values: Floats) -> Floats:
    return np.bincount(row, weights=values, minlength=count).astype(np.float64)


#: Index of ``noop`` in ``TrialPlan.everyone``.
_HEADROOM_PLACE = 2
_ROLES = {BASELINE: "baseline", CONTROL: "control", HEADROOM: "headroom"}
#: Bits per byte. One bit per ns is 1 Gbit/s.
_BITS = 8.0


def analyse_world_trial(run: WorldRun, context: Mapping[str, Any]) -> TrialResult:
    """Returns the result of a trial.

    If a rank's trace is missing, the result has no rounds: this rank may have been the slowest.

    Args:
        run: traces of the ranks at one world size.
        context: the run's context, which holds the command that started the run.
    """
    trials = {rank: trial for rank, trace in run.traces.items() if (trial := trial_of(trace))}
    trial = trials[min(trials)]
    plan = parse_trial(trial["plan"])
    missing = [rank for rank in range(run.world_size) if rank not in trials]
    if missing:
        figures_of = no_figures(plan.schedule())
    else:
        traces = [run.traces[rank] for rank in sorted(trials)]
        is_sharded = bool(trial.get("sharded"))
        figures_of = figures(traces, plan.schedule(), trial["first_step"], is_sharded)
    held_bytes = trial.get("held_bytes", {})
    candidates = tuple(
        _candidate(
            candidate,
            position,
            figures_of,
            plan,
            run.world_size,
            held_bytes.get(candidate.label, 0.0),
        )
        for position, candidate in enumerate(plan.everyone)
    )
    baseline = {name: values[0] for name, values in figures_of.columns.items()}
    setting = TrialSetting(
        command=str(context["command"]),
        is_run="script" in context or "workload" in context,
        script=tuple(map(str, context.get("script", ()))),
    )
    parts = _parts(baseline) if figures_of.rounds else ()
    verdict = judge(plan.candidates, candidates, figures_of.step_ns, parts, setting)
    return TrialResult(
        world_size=run.world_size,
        rounds=figures_of.rounds,
        planned_rounds=plan.rounds,
        block_steps=plan.block,
        warmup_steps=plan.warmup,
        candidates=candidates,
        parts=parts,
        link_gbit_per_s=_link(baseline, run.world_size) if figures_of.rounds else np.nan,
        left_out=tuple((str(label), str(why)) for label, why in trial["left_out"].items()),
        verdict=incomplete(missing) if missing else verdict,
    )


def _candidate(
    candidate: Candidate,
    position: int,
    figures_of: Figures,
    plan: TrialPlan,
    world_size: int,
    held_bytes: float,
) -> CandidateResult:
    role = _ROLES.get(candidate.label, "candidate")
    own_columns = {name: values[position] for name, values in figures_of.columns.items()}
    baseline = {name: values[0] for name, values in figures_of.columns.items()}
    step, plain = figures_of.step_ns[position], figures_of.step_ns[0]
    joint = 1 - (1 - CONFIDENCE) / max(1, len(plan.candidates))
    has_rounds = figures_of.rounds > 0
    # Only native compressors record their bytes and times.
    is_recorded = bool(candidate.compressor) and bool((own_columns["compressed_wire"] > 0).any())
    floor = figures_of.step_ns[_HEADROOM_PLACE] if plan.headroom else None
    wire = _wire_bytes(candidate, own_columns)
    if candidate.compressor and not is_recorded:
        wire = np.full_like(wire, np.nan)
    pays = _break_even(own_columns, baseline, wire) if is_recorded else None
    return CandidateResult(
        label=candidate.label,
        role=role,
        techniques=0 if role != "candidate" else candidate.techniques,
        exact=candidate.exact(world_size),
        compresses=candidate.compresses,
        step_ms=ns_to_ms(float(np.exp(center(np.log(step))))) if has_rounds else np.nan,
        step_ms_interval=typical_of_rounds(step / NS_PER_MS),
        ratio=None if role == "baseline" else ratio_of_rounds(step, plain),
        joint_ratio=None if role == "baseline" else ratio_of_rounds(step, plain, joint),
        exposed_ms=_typical_ms(own_columns["exposed"]),
        hidden_ms=_typical_ms(own_columns["hidden"]),
        encode_ms=_typical_ms(own_columns["encode"]) if is_recorded else np.nan,
        reduce_ms=_typical_ms(own_columns["reduce"]) if is_recorded else np.nan,
        decode_ms=_typical_ms(own_columns["decode"]) if is_recorded else np.nan,
        wire_bytes=float(np.median(wire)) if has_rounds else np.nan,
        relative_error=_known_mean(own_columns["relative_error"]),
        cosine=_known_mean(own_columns["cosine"]),
        loss_effect=None if role != "candidate" else _loss_effect(own_columns, baseline),
        overhead_reduction=_overhead_reduction(step, plain, floor) if role == "candidate" else None,
        break_even=pays,
        no_break_even=None if pays else no_break_even(candidate, figures_of.rounds, is_recorded),
        barred=candidate.barred,
        held_bytes=float(held_bytes),
        later_over_earlier=_settling(figures_of.later_over_earlier[position], joint),
    )


def _settling(halves: Floats, joint: float) -> Interval | None:
    if not np.isfinite(halves).all():
        return None
    return ratio_of_rounds(halves, np.ones_like(halves), joint)


def _wire_bytes(candidate: Candidate, own_columns: Mapping[str, Floats]) -> Floats:
    """Returns the bytes that a rank sends per step, one value per round; NaN if unknown."""
    if candidate.label == HEADROOM:
        return np.zeros_like(own_columns["wall"])
    if not candidate.link_only:
        return np.full_like(own_columns["wall"], np.nan)
    return own_columns["compressed_wire"] + own_columns["plain_ring"]


def _break_even(
    own_columns: Mapping[str, Floats], baseline: Mapping[str, Floats], wire: Floats
) -> BreakEven | None:
    work = own_columns["wall"] - own_columns["exposed"]
    return break_even(
        BreakEvenCosts(
            plain_bytes=baseline["plain_ring"],
            wire_bytes=wire,
            coding_ns=own_columns["encode"] + own_columns["reduce"] + own_columns["decode"],
            slowdown_ns=work - (baseline["wall"] - baseline["exposed"]),
            hidden_ns=baseline["hidden"],
        )
    )


def _loss_effect(
    own_columns: Mapping[str, Floats], baseline: Mapping[str, Floats]
) -> Interval | None:
    plain = baseline["loss"]
    if not np.isfinite(plain).all() or (plain == 0).any():
        return None
    return mean_of_rounds((own_columns["loss"] - plain) / np.abs(plain))


def _overhead_reduction(step: Floats, plain: Floats, floor: Floats | None) -> Interval | None:
    """Returns the share of the communication overhead that a candidate saves; None if unknown.

    The share is 1 - median(step - floor) / median(plain - floor). ``floor`` is the step time of
    ``noop``, and ``plain`` is the step time of the baseline.
    """
    count = len(step)
    if floor is None or count < MIN_ROUNDS:
        return None
    over, whole = step - floor, plain - floor
    rows = resamples(count)
    drawn_whole = np.median(whole[rows], axis=1)
    if np.median(whole) <= 0 or (drawn_whole <= 0).any():
        return None
    drawn = 1 - np.median(over[rows], axis=1) / drawn_whole
    value = float(1 - np.median(over) / np.median(whole))
    return interval_of(value, drawn, count, CONFIDENCE)


def _parts(baseline: Mapping[str, Floats]) -> tuple[StepShare, ...]:
    shares = [StepShare(name, _typical_ms(baseline[name])) for name in PARTS]
    return tuple(sorted(shares, key=lambda share: -share.ms))


def _link(baseline: Mapping[str, Floats], world_size: int) -> float:
    under_way = baseline["exposed"] + baseline["hidden"]
    if world_size < 2 or not (np.median(under_way) > 0):
        return float("nan")
    return float(_BITS * np.median(baseline["plain_ring"]) / np.median(under_way))


def _typical_ms(values: Floats) -> float:
    return ns_to_ms(float(np.median(values))) if len(values) else float("nan")


def _known_mean(values: Floats) -> float:
    known_values = values[~np.isnan(values)]
    return float(known_values.mean()) if len(known_values) else float("nan")
