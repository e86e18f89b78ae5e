"""Table of predicted throughput, shown next to measured throughput."""

from __future__ import annotations

from commprof.analysis.predicted import PredictedPoint, Predictions
from commprof.report.predicted_words import bracketed, change_words
from commprof.report.tabulated import Grid, three_digits
from commprof.text import printable

CAPTION = "Predicted, not measured"


def predicted_grid(predictions: Predictions) -> Grid:
    """Makes a table with a row per world size and setting."""
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
    """Returns the legend of the table, which says what the interval includes."""
    if predictions.worst_error is None:
        return (
            "predicted: with the range (in parentheses) due to sampling and fit alone. This range "
            "is not an interval for real steps: the model's own error is not known, because no "
            "recorded steps were held out."
        )
    return (
        "predicted: in brackets the 95 % interval for real steps. It includes the model's error, "
        f"which was at most {predictions.worst_error:.1%} on held-out steps."
    )


def setting_text(point: PredictedPoint) -> str:
    """Names the settings that differ from the recording."""
    return printable(", ".join(change_words(*part) for part in point.setting)) or "as recorded"
