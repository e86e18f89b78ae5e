"""Searches for the fastest setting among those that a model can predict."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.errors import CommprofError, UsageError
from commprof.forecast.replay.setting import measured_hook
from commprof.forecast.scenario.model import Model
from commprof.forecast.scenario.scenario import Prediction, Scenario
from commprof.forecast.sharded.steps import passes_of
from commprof.stats.intervals import percentile_interval

BUCKET_CAP, HOOK = "bucket-cap", "hook"
CHOICES = (BUCKET_CAP, HOOK)
#: Bucket caps to try, in bytes; inf for one bucket.
CAPS_BYTES = (*(float(n << 20) for n in (1, 2, 5, 10, 25, 50, 100)), math.inf)


@dataclass(frozen=True)
class PredictedCandidate:
    """A setting compared with the unchanged scenario; by ``shortest``, with the recorded one."""

    prediction: Prediction
    #: Time saved as a fraction of the unchanged step, with its interval; negative if slower.
    gain: float
    gain_low: float
    gain_high: float
    #: Share of the bootstrap replicates in which the candidate is faster.
    certainty: float
    #: Share of the bootstrap replicates in which the gain exceeds the model's worst held-out error;
    #: NaN if this error is unknown.
    certainty_beyond_error: float
    #: True if the gain's whole interval exceeds this error; None if the error is unknown.
    is_gain: bool | None


@dataclass(frozen=True)
class Refused:
    """A setting that cannot be predicted, and why."""

    bucket_cap_bytes: float
    hook: str | None
    #: Error message.
    reason: str


@dataclass(frozen=True)
class Search:
    """All settings that were compared."""

    #: The fastest first; includes the unchanged scenario, with gain 0.
    candidates: tuple[PredictedCandidate, ...]
    refused: tuple[Refused, ...]
    #: Caps and hooks that were combined; the values of the unchanged scenario come first.
    bucket_caps_bytes: tuple[float, ...]
    hooks: tuple[str | None, ...]
    #: Number of settings left out because they make the same buckets as another setting.
    same_count: int
    #: True if hooks should be compared, but the profile has no cost of another hook.
    has_no_hook: bool


def optimize(
    replay: Model, scenario: Scenario, over: Sequence[str], worst_error: float = math.nan
) -> Search:
    """Predicts all combinations of caps and hooks, and compares them with the unchanged scenario.

    Args:
        replay: model of the recorded step.
        scenario: the setting to start from.
        over: some of ``CHOICES``.
        worst_error: the model's worst relative error on held-out steps; NaN if unknown.

    Raises:
        UsageError: ``over`` is empty or has a name that is not in ``CHOICES``.
        CommprofError: the scenario itself cannot be predicted.
    """
    unknown = [name for name in over if name not in CHOICES]
    if unknown or not over:
        raise UsageError(
            f"--optimize {','.join(over)!r} is not valid (allowed: {', '.join(CHOICES)})"
        )
    caps = (scenario.bucket_cap_bytes, *(CAPS_BYTES if BUCKET_CAP in over else ()))
    hooks = _hooks(replay, scenario) if HOOK in over else (scenario.hook,)
    _, before = replay.sampled(scenario)
    candidates, refused = [], []
    seen = set()
    same_count = 0
    for cap, hook in itertools.product(dict.fromkeys(caps), hooks):
        chosen = dataclasses.replace(scenario, bucket_cap_bytes=cap, hook=hook)
        try:
            prediction, steps = replay.sampled(chosen)
        except CommprofError as error:
            refused.append(Refused(cap, hook, str(error)))
            continue
        # Several caps may make the same buckets; only the first of these caps is kept.
        same = prediction.buckets, prediction.step_s.value, hook
        if same in seen:
            same_count += 1
            continue
        seen.add(same)
        candidates.append(_candidate(prediction, 1 - steps / before, worst_error))
    return Search(
        candidates=tuple(sorted(candidates, key=lambda candidate: -candidate.gain)),
        refused=tuple(refused),
        bucket_caps_bytes=tuple(dict.fromkeys(caps)),
        hooks=hooks,
        same_count=same_count,
        has_no_hook=HOOK in over and not any(hooks[1:]),
    )


def shortest(
    replay: Model, scenarios: Sequence[Scenario], worst_error: float = math.nan
) -> PredictedCandidate | None:
    """Finds the scenario with the shortest step among the scenarios that change a setting.

    The step time is divided by the number of backward passes, because every pass has the same
    number of samples. Only scenarios with the ranks and link of the first scenario are compared.
    Returns None if nothing can be compared.
    """
    before = scenarios[0].as_recorded
    # Compared as text, because NaN differs from itself.
    asked = [one for one in scenarios if repr(one.as_recorded) == repr(before)]
    changed = [one for one in asked if one.changes_settings]
    if not changed:
        return None
    try:
        _, unchanged = replay.sampled(before)
    except CommprofError:
        return None
    predicted = []
    for scenario in changed:
        prediction, steps = replay.sampled(scenario)
        passes = passes_of(replay.schedule, scenario)
        candidate = _candidate(prediction, 1 - steps / passes / unchanged, worst_error)
        predicted.append((prediction.step_s.value / passes, candidate))
    return min(predicted, key=lambda one: one[0])[1]


def _hooks(replay: Model, scenario: Scenario) -> tuple[str | None, ...]:
    """Returns the scenario's own hook, no hook (""), and the hooks in the profile."""
    hooks = replay.profile.hooks
    own_label = replay.schedule.hook if scenario.hook is None else scenario.hook
    own_cost = measured_hook(hooks, own_label)
    own_labels = {own_label, *(label for label, cost in hooks.items() if cost is own_cost)}
    return (scenario.hook, *(label for label in ("", *hooks) if label not in own_labels))


def _candidate(
    prediction: Prediction, gain: npt.NDArray[np.float64], worst_error: float
) -> PredictedCandidate:
    low, high = (float(bound) for bound in percentile_interval(gain))
    is_known = not math.isnan(worst_error)
    return PredictedCandidate(
        prediction,
        float(np.median(gain)),
        low,
        high,
        float((gain > 0).mean()),
        float((gain > worst_error).mean()) if is_known else math.nan,
        low > worst_error if is_known else None,
    )
