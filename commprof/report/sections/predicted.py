"""Predicted throughput, as a table beside the measured one."""

from __future__ import annotations

import re

from commprof.analysis.predicted import PredictedPoint, Predictions
from commprof.report.prediction.cells import bracketed
from commprof.report.tabulated import Grid, three_digits
from commprof.text import printable

CAPTION = "Predicted, not measured"


def predicted_grid(predictions: Predictions) -> Grid:
    """A row per world size and setting."""
    rows = [
        (
            str(point.world_size),
            setting_text(point),
            f"{three_digits(point.samples_per_s.value)} {_bounds(point, predictions)}",
            printable("; ".join(point.outside)) or "inside",
        )
        for point in predictions.points
    ]
    return Grid(rows, ("ranks", "setting", "samples/s", "measured range"), (1, 3))


def _bounds(point: PredictedPoint, predictions: Predictions) -> str:
    low, high = (three_digits(x) for x in (point.samples_per_s.low, point.samples_per_s.high))
    return bracketed(low, high, predictions.worst_error is not None)


def legend(predictions: Predictions) -> str:
    """Says what the interval holds."""
    if predictions.worst_error is None:
        return (
            "predicted: with the range (in parentheses) that sampling and fit alone leave open. It "
            "is no interval for real steps: the model's own error is not known, because nothing "
            "was recorded that it was not made of."
        )
    return (
        "predicted: with the interval of the step, which the model's errors on held-out steps "
        f"widen: {predictions.worst_error:.1%} at worst."
    )


def setting_text(point: PredictedPoint) -> str:
    """Says what is not as it was recorded."""
    return printable(", ".join(_words(*part) for part in point.setting)) or "as recorded"


def _words(name: str, value: str) -> str:
    """By the file's name for it, which says the unit."""
    number = float(value) if re.fullmatch(r"[0-9.]+(e[+-]?\d+)?", value) else None
    if number is None:
        words = {"hook": f"hook {value or 'none'}", "scaling": f"{value} scaling"}
        return words.get(name, f"{name} {value}")
    return {
        "bandwidth_bytes_per_s": f"{number * 8 / 1e9:.4g} Gbit/s",
        "latency_s": f"{number * 1e6:.4g} µs",
        "bucket_cap_bytes": f"buckets of {number / 2**20:.4g} MiB",
        "ranks_per_host": f"{number:g} ranks per host",
        "cores_per_host": f"{number:g} cores per host",
    }.get(name, f"{name} {value}")
