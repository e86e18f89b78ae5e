from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.judging.results_file import contexts, read_rows
from benchmarks.predictions import predict_error
from benchmarks.predictions.predict_error import demands, errors, is_transformer

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks/results/predictions/predict_error.jsonl"


def point(error: float, bounds: float = 0.2, **setting: Any) -> dict[str, Any]:
    both = {"no_overlap_error": bounds, "perfect_overlap_error": -bounds}
    return {"ranks": 4, "error": error, **both, **setting}


@pytest.mark.parametrize(("transformer", "count"), [(False, "{} points"), (True, "{} settings")])
def test_the_pages_quote_the_prediction_errors_of_the_results_file(
    transformer: bool, count: str
) -> None:
    rows = [row for row in read_rows(RESULTS) if is_transformer(row) == transformer]
    page = (ROOT / "docs" / "prediction.md").read_text()
    found = errors(rows)
    cells = " | ".join(f"{100 * value:.2f} %" for value in found["model"])
    assert f"| {count.format(len(rows))} | {cells} |" in page
    measured = (ROOT / "docs" / "measured.md").read_text()
    for bound in ("no overlap", "perfect overlap"):
        assert f"compared with {bound} | 1 | {100 * found['model'][0]:.2f} % |" in measured
        assert f"| below that bound's {100 * found[bound][0]:.2f} % |" in measured


@pytest.mark.parametrize("transformer", [False, True])
def test_the_committed_prediction_errors_meet_all_demands(transformer: bool) -> None:
    rows = [row for row in read_rows(RESULTS) if is_transformer(row) == transformer]
    assert all(one.met for one in demands(rows))


WHAT = "timed workload, error of the step: "


@pytest.mark.parametrize(
    ("rows", "missed"),
    [
        ([point(0.04), point(-0.06)], []),
        ([point(0.06), point(-0.06)], ["mean"]),
        ([point(0.0), point(0.0), point(0.0), point(-0.16)], ["worst"]),
        (
            [point(0.02, bounds=0.01)],
            ["mean, compared with no overlap", "mean, compared with perfect overlap"],
        ),
    ],
)
def test_missed_prediction_demands_are_named(rows: list[dict[str, Any]], missed: list[str]) -> None:
    repeated = rows * (72 // len(rows))
    found = [one.what for one in demands(repeated) if not one.met]
    assert found == [WHAT + what for what in missed]
    few = [one.what for one in demands(repeated[1:]) if not one.met]
    assert few[0] == "timed workload, points measured"


def test_single_transformer_steps_have_no_demand_on_the_worst_error() -> None:
    rows: list[dict[str, Any]] = [point(error) for error in (0.0, 0.0, 0.0, 0.19)] * 3
    for row in rows:
        row.pop("ranks", None)
    assert all(one.met for one in demands(rows))
    assert not all(one.met for one in demands(rows[1:]))


def test_timed_and_transformer_studies_can_share_a_results_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "points.jsonl"
    results.write_text(json.dumps(point(0.01)) + "\n")

    def found(*_: object) -> Any:
        yield {"cap_mib": 1.0, **{k: v for k, v in point(0.09).items() if k != "ranks"}}

    monkeypatch.setattr(predict_error, "transformer", found)
    arguments = ["predict_error.py", "--results", str(results), "--transformer"]
    monkeypatch.setattr("sys.argv", arguments)
    assert predict_error.main() == 1
    out = capsys.readouterr().out
    assert "model: mean error 9.00%" in out
    step = "transformer, error of the step: mean"
    assert (
        f"NOT met: {step}: 9.00 % (demand: at most 5 %)\nmet: {step}, compared with no overlap"
        in out
    )
    assert len(read_rows(results)) == 2
    assert len(contexts(results)) == 1
