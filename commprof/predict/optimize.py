"""The best of the settings that a model can judge, and how sure that is."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.errors import CommprofError, UsageError
from commprof.predict.replay import Replay
from commprof.predict.scenario import Prediction, Scenario

BUCKET_CAP, HOOK = "bucket-cap", "hook"
CHOICES = (BUCKET_CAP, HOOK)
#: Tried besides the recorded buckets, in bytes (DDP counts in MiB); the last is one bucket.
CAPS_BYTES = (*(float(n << 20) for n in (1, 2, 5, 10, 25, 50, 100)), math.inf)


@dataclass(frozen=True)
class Candidate:
    """One setting against the scenario as it is."""

    prediction: Prediction
    #: Time saved over the step as it is, with its interval; negative where it costs.
    gain: float
    gain_low: float
    gain_high: float
    #: Share of the replicates in which it is faster.
    certainty: float


def optimize(replay: Replay, scenario: Scenario, over: Sequence[str]) -> list[Candidate]:
    """All settings, the fastest first; the scenario as it is stands among them with gain 0.

    Gains are compared replicate by replicate, with the same draws on both sides.

    Raises:
        UsageError: something else than ``CHOICES`` is to be chosen.
        CommprofError: the scenario itself cannot be predicted.
    """
    unknown = [name for name in over if name not in CHOICES]
    if unknown or not over:
        raise UsageError(f"--optimize {','.join(over)!r} (allowed: {', '.join(CHOICES)})")
    caps: list[float] = [scenario.bucket_cap_bytes]
    hooks: list[str | None] = [scenario.hook]
    if BUCKET_CAP in over:
        caps += CAPS_BYTES
    if HOOK in over:
        own = replay.schedule.hook if scenario.hook is None else scenario.hook
        hooks += [label for label in ("", *replay.profile.hooks) if label != own]
    _, before = replay.sampled(scenario)
    found = []
    seen = set()
    for cap, hook in itertools.product(dict.fromkeys(caps), hooks):
        chosen = dataclasses.replace(scenario, bucket_cap_bytes=cap, hook=hook)
        try:
            prediction, steps = replay.sampled(chosen)
        except CommprofError:
            if chosen == scenario:
                raise
            continue
        # Several caps may make the same buckets; the first of them stands for all.
        same = prediction.buckets, prediction.step_s.value, hook
        if same in seen:
            continue
        seen.add(same)
        gain = 1 - steps / before
        low, high = np.percentile(gain, [2.5, 97.5])
        found.append(
            Candidate(
                prediction,
                float(np.median(gain)),
                float(low),
                float(high),
                float((gain > 0).mean()),
            )
        )
    return sorted(found, key=lambda candidate: -candidate.gain)
