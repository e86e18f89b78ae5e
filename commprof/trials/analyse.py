"""From the traces of a world size to the result of the trial that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.turns import trial_of
from commprof.stats.intervals import Interval, center, interval_of, resamples
from commprof.trace.run.run_directory import WorldRun
from commprof.trials.blocks import PARTS, Figures, figures, no_figures
from commprof.trials.break_even import Costs, break_even, no_break_even
from commprof.trials.candidates import BASELINE, CONTROL, HEADROOM, Candidate
from commprof.trials.plan import Plan, parse_trial
from commprof.trials.result import BreakEven, CandidateResult, StepShare, TrialResult
from commprof.trials.statistics import (
    CONFIDENCE,
    MIN_ROUNDS,
    mean,
    ratio,
    typical,
)
from commprof.trials.verdict import Setting, incomplete, judge
from commprof.units import NS_PER_MS, ns_to_ms

Floats = npt.NDArray[np.float64]

#: Of those that take turns.
_HEADROOM_PLACE = 2
_ROLES = {BASELINE: "baseline", CONTROL: "control", HEADROOM: "headroom"}
#: Bits per ns are Gbit/s.
_BITS = 8.0


def analyse_world_trial(run: WorldRun, context: Mapping[str, Any]) -> TrialResult:
    """The trial of one world size, in which one began.

    Without every rank's trace there are no rounds: a step is that of the slowest rank.

    Args:
        run: what the ranks left.
        context: of the run, for the command that applies the verdict.
    """
    told = {rank: trial for rank, trace in run.traces.items() if (trial := trial_of(trace))}
    trial = told[min(told)]
    plan = parse_trial(trial["plan"])
    missing = [rank for rank in range(run.world_size) if rank not in told]
    if missing:
        found = no_figures(plan.schedule())
    else:
        traces = [run.traces[rank] for rank in sorted(told)]
        found = figures(traces, plan.schedule(), trial["first_step"])
    candidates = tuple(
        _candidate(one, place, found, plan, run.world_size)
        for place, one in enumerate(plan.everyone)
    )
    baseline = {name: values[0] for name, values in found.columns.items()}
    setting = Setting(
        command=str(context["command"]),
        is_run="script" in context or "workload" in context,
        script=tuple(map(str, context.get("script", ()))),
    )
    parts = _parts(baseline) if found.rounds else ()
    verdict = judge(plan.candidates, candidates, found.step_ns, parts, setting)
    return TrialResult(
        world_size=run.world_size,
        rounds=found.rounds,
        planned_rounds=plan.rounds,
        block_steps=plan.block,
        warmup_steps=plan.warmup,
        candidates=candidates,
        parts=parts,
        link_gbit_per_s=_link(baseline, run.world_size) if found.rounds else np.nan,
        left_out=tuple((str(label), str(why)) for label, why in trial["left_out"].items()),
        verdict=incomplete(missing) if missing else verdict,
    )


def _candidate(
    one: Candidate, place: int, found: Figures, plan: Plan, world_size: int
) -> CandidateResult:
    role = _ROLES.get(one.label, "candidate")
    own = {name: values[place] for name, values in found.columns.items()}
    baseline = {name: values[0] for name, values in found.columns.items()}
    step, plain = found.step_ns[place], found.step_ns[0]
    joint = 1 - (1 - CONFIDENCE) / max(1, len(plan.candidates))
    known = found.rounds > 0
    # Only the native compressors tell what they did; without that nothing is known of their bytes.
    told = bool(one.compressor) and bool((own["compressed_wire"] > 0).any())
    floor = found.step_ns[_HEADROOM_PLACE] if plan.headroom else None
    wire = _wire_bytes(one, own)
    if one.compressor and not told:
        wire = np.full_like(wire, np.nan)
    pays = _break_even(own, baseline, wire) if told else None
    return CandidateResult(
        label=one.label,
        role=role,
        techniques=0 if role != "candidate" else one.techniques,
        exact=one.exact(world_size),
        compresses=one.compresses,
        step_ms=ns_to_ms(float(np.exp(center(np.log(step))))) if known else np.nan,
        step_ms_interval=typical(step / NS_PER_MS),
        ratio=None if role == "baseline" else ratio(step, plain),
        joint_ratio=None if role == "baseline" else ratio(step, plain, joint),
        exposed_ms=_typical_ms(own["exposed"]),
        hidden_ms=_typical_ms(own["hidden"]),
        encode_ms=_typical_ms(own["encode"]) if told else np.nan,
        reduce_ms=_typical_ms(own["reduce"]) if told else np.nan,
        decode_ms=_typical_ms(own["decode"]) if told else np.nan,
        wire_bytes=float(np.median(wire)) if known else np.nan,
        relative_error=_known_mean(own["relative_error"]),
        cosine=_known_mean(own["cosine"]),
        loss_effect=None if role != "candidate" else _loss_effect(own, baseline),
        overhead_reduction=_overhead_reduction(step, plain, floor) if role == "candidate" else None,
        break_even=pays,
        no_break_even=None if pays else no_break_even(one, found.rounds, told),
        barred=one.barred,
        later_over_earlier=_settling(found.later_over_earlier[place], joint),
    )


def _settling(halves: Floats, joint: float) -> Interval | None:
    if not np.isfinite(halves).all():
        return None
    return ratio(halves, np.ones_like(halves), joint)


def _wire_bytes(one: Candidate, own: Mapping[str, Floats]) -> Floats:
    """Per round: what a rank sends per step."""
    if one.label == HEADROOM:
        return np.zeros_like(own["wall"])
    if not one.link_only:
        return np.full_like(own["wall"], np.nan)
    return own["compressed_wire"] + own["plain_ring"]


def _break_even(
    own: Mapping[str, Floats], baseline: Mapping[str, Floats], wire: Floats
) -> BreakEven | None:
    work = own["wall"] - own["exposed"]
    return break_even(
        Costs(
            plain_bytes=baseline["plain_ring"],
            wire_bytes=wire,
            coding_ns=own["encode"] + own["reduce"] + own["decode"],
            slowdown_ns=work - (baseline["wall"] - baseline["exposed"]),
            hidden_ns=baseline["hidden"],
        )
    )


def _loss_effect(own: Mapping[str, Floats], baseline: Mapping[str, Floats]) -> Interval | None:
    """Relative, so that it does not matter how a script scales its loss."""
    plain = baseline["loss"]
    if not np.isfinite(plain).all() or (plain == 0).any():
        return None
    return mean((own["loss"] - plain) / np.abs(plain))


def _overhead_reduction(step: Floats, plain: Floats, floor: Floats | None) -> Interval | None:
    """``1 - (step - headroom's) / (baseline's - headroom's)``, from medians over rounds."""
    count = len(step)
    if floor is None or count < MIN_ROUNDS:
        return None
    over, whole = step - floor, plain - floor
    rows = resamples(count)
    drawn_whole = np.median(whole[rows], axis=1)
    if np.median(whole) <= 0 or (drawn_whole <= 0).any():
        return None  # what is to be reduced may be nothing
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
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
