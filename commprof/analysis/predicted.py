"""Predicted throughput for the scaling curve, from what ``commprof predict --format json`` wrote.

It is read, not made: the model's own interval and error come with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.errors import CommprofError
from commprof.files import read_json
from commprof.stats.intervals import Interval

_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PredictedPoint:
    """One world size in one setting."""

    world_size: int
    #: What is not as it was recorded, by the names of the file; empty for the recorded setting.
    setting: tuple[tuple[str, str], ...]
    #: With the interval of the step, which holds the model's worst held-out error.
    samples_per_s: Interval
    #: Why parts of it lie outside of the measured range; empty inside.
    outside: tuple[str, ...]


@dataclass(frozen=True)
class Predictions:
    """All points of one file."""

    points: tuple[PredictedPoint, ...]
    #: Largest error on steps that the model was not given, as a share; None if there were none.
    worst_error: float | None


def read_predictions(path: Path) -> Predictions:
    """Reads such a file; answers without samples/s are left out.

    Raises:
        CommprofError: it is none, or of a version not known here.
    """
    try:
        document = read_json(path)
        version = document["schema_version"]
        if version != _SCHEMA_VERSION:
            raise CommprofError(
                f"{invocation.quoted(path)} has schema_version {version}, not {_SCHEMA_VERSION}; "
                "predict once more with this version of commprof"
            )
        points = tuple(
            _point(answer)
            for answer in document["answers"]
            if answer["prediction"]["samples_per_s"] is not None
        )
        worst = document["error"]
        return Predictions(points, None if worst is None else float(worst["worst"]))
    except OSError as error:
        raise CommprofError(f"{invocation.quoted(path)} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        raise CommprofError(
            f"{invocation.quoted(path)} holds no predictions; write them with "
            + invocation.command("predict", "RUN", "--format", "json")
        ) from None


def _point(answer: Mapping[str, Any]) -> PredictedPoint:
    prediction, interval = answer["prediction"], answer["interval_s"]
    value, step_s = float(prediction["samples_per_s"]), float(prediction["step_s"]["value"])
    return PredictedPoint(
        world_size=int(prediction["scenario"]["world_size"]),
        setting=tuple(
            (str(name), str(value))
            for name, value in prediction["scenario"].items()
            if name != "world_size" and value not in (None, "flat", "weak")
        ),
        samples_per_s=Interval(
            value,
            value * step_s / float(interval["high"]),
            value * step_s / float(interval["low"]),
        ),
        outside=tuple(map(str, prediction["outside"])),
    )
