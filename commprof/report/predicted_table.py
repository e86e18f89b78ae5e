"""Predicted throughput, as a table beside the measured one."""

from __future__ import annotations

from commprof.analysis.predicted import PredictedPoint, Predictions
from commprof.report.plain_text import printable
from commprof.report.tabulated import Grid, three_digits

CAPTION = "Predicted, not measured"


def predicted_grid(predictions: Predictions) -> Grid:
    """A row per world size and setting."""
    rows = [
        (
            str(point.world_size),
            setting_text(point),
            f"{three_digits(point.samples_per_s.value)} "
            f"[{three_digits(point.samples_per_s.low)}, {three_digits(point.samples_per_s.high)}]",
            printable("; ".join(point.outside)) or "inside",
        )
        for point in predictions.points
    ]
    return Grid(rows, ("ranks", "setting", "samples/s", "measured range"), (1, 3))


def legend(predictions: Predictions) -> str:
    """What the interval holds."""
    if predictions.worst_error is None:
        return (
            "predicted: with the interval of the recorded steps alone; the model's error is not "
            "known, for nothing was recorded that it was not made of."
        )
    return (
        "predicted: with the interval of the step, which holds the model's largest error on steps "
        f"that it was not given, {predictions.worst_error:.1%}."
    )


def setting_text(point: PredictedPoint) -> str:
    """What is not as it was recorded."""
    words = [f"{name} {value}" for name, value in point.setting]
    return printable(", ".join(words)) or "as recorded"
