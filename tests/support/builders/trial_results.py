from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.stats.intervals import ratio_of_rounds, typical_of_rounds
from commprof.tune.trials.break_even import no_break_even
from commprof.tune.trials.candidates import ROLES, parse_candidate
from commprof.tune.trials.result import CandidateResult, StepShare, TrialResult
from commprof.tune.trials.verdict import TrialSetting, judge

PARTS = (StepShare("exposed", 60.0), StepShare("backward", 30.0), StepShare("data", 10.0))
RUN = TrialSetting("python -m commprof.run --nproc 2 --trial fp16,int8 train.py", True)
ROUNDS = 8
_ROLE_NAMES = ("baseline", "control", "headroom")


def rounds(step_ms: float, spread: float, seed: int) -> npt.NDArray[np.float64]:
    noise = np.random.default_rng(seed).normal(size=ROUNDS)
    return step_ms * 1e6 * np.exp(spread * (noise - noise.mean()))


def trial(steps: dict[str, tuple[float, float]], **values: Any) -> TrialResult:
    """Returns a trial's result; ``steps`` has each label's mean step in ms and relative deviation.

    The first label must be "none", and the labels "none again" and "noop" are needed, too.
    ``errors`` has the gradient error of compressors, 1 % by default. A compressor with NaN has no
    figures, as torch operations do not.
    """
    errors = values.pop("errors", {})
    setting = values.pop("setting", RUN)
    step_ns = np.stack([rounds(*one, seed) for seed, one in enumerate(steps.values())])
    labels = [label for label in steps if label not in {one.label for one in ROLES}]
    results = tuple(
        _candidate(label, step_ns[i], step_ns[0], len(labels), errors)
        for i, label in enumerate(steps)
    )
    candidates = [parse_candidate(label) for label in labels]
    made = TrialResult(
        world_size=2,
        rounds=ROUNDS,
        planned_rounds=ROUNDS,
        block_steps=6,
        warmup_steps=2,
        candidates=results,
        parts=PARTS,
        link_gbit_per_s=0.94,
        left_out=(),
        verdict=judge(candidates, results, step_ns, PARTS, setting),
    )
    return dataclasses.replace(made, **values)


def _candidate(
    label: str,
    step: npt.NDArray[np.float64],
    plain: npt.NDArray[np.float64],
    count: int,
    errors: dict[str, float],
) -> CandidateResult:
    roles = [one.label for one in ROLES]
    role = _ROLE_NAMES[roles.index(label)] if label in roles else "candidate"
    parsed = parse_candidate(label) if role == "candidate" else ROLES[roles.index(label)]
    coded = bool(parsed.compressor)
    told = coded and not math.isnan(errors.get(label, 0.01))
    joint = 1 - 0.05 / max(1, count)
    return CandidateResult(
        label=label,
        role=role,
        techniques=parsed.techniques,
        exact=parsed.exact(2),
        compresses=parsed.compresses,
        step_ms=float(np.exp(np.log(step).mean())) / 1e6,
        step_ms_interval=typical_of_rounds(step / 1e6),
        ratio=None if role == "baseline" else ratio_of_rounds(step, plain),
        joint_ratio=None if role == "baseline" else ratio_of_rounds(step, plain, joint),
        exposed_ms=20.0,
        hidden_ms=5.0,
        encode_ms=1.5 if told else math.nan,
        reduce_ms=0.5 if told else math.nan,
        decode_ms=0.25 if told else math.nan,
        wire_bytes=2e6 if coded else 4e6,
        relative_error=errors.get(label, 0.01) if coded else math.nan,
        cosine=0.9999 if told else math.nan,
        loss_effect=None,
        overhead_reduction=None,
        break_even=None,
        no_break_even=no_break_even(parsed, ROUNDS, told),
        barred=parsed.barred,
    )
