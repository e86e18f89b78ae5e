"""Predicted throughput for the scaling curve, read from ``commprof predict --format json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from commprof import invocation
from commprof.errors import CommprofError
from commprof.files import Shape, checked, read_json
from commprof.stats.intervals import Interval

_SCHEMA_VERSION = 2
#: Fields of a scenario that are numbers, or "inf".
_NUMBERS: Final = (
    *("bandwidth_bytes_per_s", "latency_s", "bucket_cap_bytes"),
    *("ranks_per_host", "cores_per_host"),
)
_SCENARIO: Final[dict[str, Shape]] = {
    "world_size": int,
    **dict.fromkeys(("hook", "scaling", "algorithm", "gather_dtype", "reduce_dtype"), str | None),
    "reshard_after_forward": bool | None,
    **dict.fromkeys(("shard_ranks", "wrap_blocks", "accumulate"), int | None),
}
_ANSWER: Final[dict[str, Shape]] = {
    "prediction": {
        "samples_per_s": float,
        "step_s": {"value": float},
        "scenario": _SCENARIO,
        "outside": list[str],
    },
    "interval_s": {"low": float, "high": float},
}

_BEST: Final[dict[str, Shape]] = {
    "candidate": {"prediction": {"scenario": {"world_size": int}}},
    "interval_s": {"value": float, "low": float, "high": float},
    "setting": str,
    "options": dict[str, str],
}


@dataclass(frozen=True)
class PredictedPoint:
    """Predicted throughput of one world size in one setting."""

    world_size: int
    #: Names and values of the settings that differ from the recording, as in
    #: ``forecast.scenario.scenario.Scenario``; empty for none.
    setting: tuple[tuple[str, Any], ...]
    samples_per_s: Interval
    #: Reasons why the prediction lies outside of the measured range; empty if it lies inside.
    outside: tuple[str, ...]


@dataclass(frozen=True)
class Predictions:
    """All predictions of one file."""

    points: tuple[PredictedPoint, ...]
    #: Largest error on held-out steps, as a fraction; None if no steps were held out.
    worst_error: float | None


def read_predictions(path: Path) -> Predictions:
    """Reads a file of predictions; predictions without samples per second are left out.

    Raises:
        CommprofError: the file holds no predictions, or has another schema version.
    """
    try:
        document = checked(read_json(path), {"schema_version": int})
        version = document["schema_version"]
        if version != _SCHEMA_VERSION:
            raise CommprofError(
                f"{invocation.quoted(path)} has schema_version {version}, not {_SCHEMA_VERSION}; "
                "repeat the prediction with this version of commprof"
            )
        answers = checked(document, {"answers": list[dict[str, Any]]})["answers"]
        found = [checked(each, _ANSWER, f"answers[{n}]") for n, each in enumerate(answers)]
        points = tuple(_point(each) for each in found if each["prediction"]["samples_per_s"] > 0)
        error = document.get("error")
        worst = None if error is None else checked(error, {"worst": float}, "error")["worst"]
        return Predictions(points, worst)
    except OSError as problem:
        said = f"{invocation.quoted(path)} cannot be read: {problem.strerror}"
        raise CommprofError(said) from None
    except (ValueError, ZeroDivisionError) as problem:
        raise CommprofError(
            f"{invocation.quoted(path)} holds no predictions ({problem}); make the file with "
            + invocation.command("predict", "RUN", "--format", "json")
        ) from None


@dataclass(frozen=True)
class BestPrediction:
    """The setting that a file of predictions recommends."""

    world_size: int
    setting: str
    #: Options of ``commprof run`` for this setting, by name.
    options: Mapping[str, str]
    #: Median step of the slowest rank, with an interval.
    step_ms: Interval
    #: True if the interval of ``step_ms`` includes the model's held-out error.
    is_interval: bool


def read_best(path: Path) -> BestPrediction:
    """Reads the best setting from a file of predictions.

    Raises:
        CommprofError: the file cannot be read, or names no best setting.
    """
    again = invocation.command("predict", "RUN") + " with options for the settings to compare"
    try:
        document = checked(
            read_json(path), {"best": dict[str, Any], "interval_holds_held_out_error": bool}
        )
        best = checked(document["best"], _BEST, "best")
    except OSError as problem:
        raise CommprofError(
            f"{invocation.quoted(path)} cannot be read ({problem.strerror}); "
            f"to make the file, run {again}"
        ) from None
    except ValueError as problem:
        raise CommprofError(
            f"{invocation.quoted(path)} names no best setting ({problem}); "
            f"to make the file, run {again}"
        ) from None
    step = best["interval_s"]
    return BestPrediction(
        best["candidate"]["prediction"]["scenario"]["world_size"],
        best["setting"],
        best["options"],
        Interval(*(1e3 * step[name] for name in ("value", "low", "high"))),
        document["interval_holds_held_out_error"],
    )


def _point(answer: Mapping[str, Any]) -> PredictedPoint:
    prediction, interval = answer["prediction"], answer["interval_s"]
    value, step_s = prediction["samples_per_s"], prediction["step_s"]["value"]
    return PredictedPoint(
        world_size=prediction["scenario"]["world_size"],
        setting=tuple(
            (name, _number(value, name) if name in _NUMBERS else value)
            for name, value in prediction["scenario"].items()
            if name != "world_size" and value not in (None, "flat", "weak")
        ),
        samples_per_s=Interval(
            value, value * step_s / interval["high"], value * step_s / interval["low"]
        ),
        outside=tuple(prediction["outside"]),
    )


def _number(value: object, name: str) -> float:
    return math.inf if value == "inf" else float(checked(value, float, name))
