"""A trial as flat rows: a row per candidate, every column a name with its unit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from commprof.stats.intervals import Interval
from commprof.trials.result import CandidateResult, TrialResult

_PLAIN = (
    *("role", "techniques", "exact", "compresses", "exposed_ms", "hidden_ms", "encode_ms"),
    *("reduce_ms", "decode_ms", "wire_bytes", "held_bytes", "relative_error", "cosine"),
)
_INTERVALS = ("ratio", "joint_ratio", "loss_effect", "overhead_reduction")


def candidate_rows(trial: TrialResult) -> Iterator[dict[str, Any]]:
    """In the order of the plan; bounds of intervals as ``_low`` and ``_high``."""
    for one in trial.candidates:
        yield {
            "world_size": trial.world_size,
            "rounds": trial.rounds,
            "candidate": one.label,
            **_figures(one),
        }


def _figures(one: CandidateResult) -> dict[str, Any]:
    row = {name: getattr(one, name) for name in _PLAIN}
    step = one.step_ms_interval or Interval(one.step_ms, math.nan, math.nan)
    row |= _bounds("step_ms", step)
    for name in _INTERVALS:
        row |= _bounds(name, getattr(one, name))
    pays, why = one.break_even, one.no_break_even
    row["pays"] = "" if pays is None else pays.pays
    row["no_break_even"] = "" if pays or why is None else f"{why.answer}, since {why.reason}"
    row["barred"] = one.barred
    return row | _bounds("pays_below_gbit_per_s", None if pays is None else pays.gbit_per_s)


def _bounds(name: str, found: Interval | None) -> dict[str, float]:
    value, low, high = (math.nan,) * 3 if found is None else dataclasses.astuple(found)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
