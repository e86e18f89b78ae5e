"""Tables that docs/measured.md shows below a study's demands, from the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import overhead, predict_error
from benchmarks.judging.results_file import read_json, read_rows


def predicted_points(of_transformer: bool) -> Callable[[Path], str]:
    """Every point of one of both studies."""

    def of_file(path: Path) -> str:
        rows = [
            row for row in read_rows(path) if predict_error.is_transformer(row) == of_transformer
        ]
        return predict_error.listed(rows) if rows else ""

    return of_file


def step_ratios(path: Path) -> str:
    """All ways of watching beside the control, at 1 and 2 ranks."""
    results = read_json(path)
    return "\n\n".join(
        f"Steps of {ranks} gloo rank{'s' * (ranks > 1)} over those without commprof, medians:\n\n"
        f"{overhead.side_by_side(results, ranks, 'github')}"
        for ranks in (1, 2)
        if all(f"ddp_{size}_{ranks}" in results for size in overhead.SIZES)
    )
