"""A trial as plain values; ``docs/trials.md`` describes them."""

from __future__ import annotations

import dataclasses
from typing import Any

from commprof.trials.result import TrialResult


def trial_dict(trial: TrialResult) -> dict[str, Any]:
    """The result's own fields, and each candidate's gain."""
    return {
        **dataclasses.asdict(trial),
        "candidates": [
            {**dataclasses.asdict(one), "gain": one.gain and dataclasses.asdict(one.gain)}
            for one in trial.candidates
        ],
        "left_out": [{"candidate": label, "reason": why} for label, why in trial.left_out],
    }
