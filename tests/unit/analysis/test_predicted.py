from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.predicted import read_predictions
from commprof.errors import CommprofError
from commprof.forecast.fit.held_out import ModelError
from commprof.forecast.report import as_json as prediction_json
from commprof.forecast.scenario.scenario import Estimate, PredictedWaiting, Prediction, Scenario
from commprof.forecast.what_if.answers import Answer, Answers
from commprof.report.sections import predicted as predicted_table
from tests.support.builders.run_directories import answer, write_predictions


def test_predicted_points_are_read_with_their_interval(tmp_path: Path) -> None:
    answers = (answer(16, 1000.0, hook="fp16"), answer(4, 400.0), answer(8, None))
    found = read_predictions(write_predictions(tmp_path / "p.json", *answers))
    far, near = found.points
    assert (far.world_size, near.world_size) == (16, 4)
    # 1000 samples/s at 100 ms are 800 samples/s at 125 ms and 1250 samples/s at 80 ms.
    interval = far.samples_per_s
    assert (interval.value, interval.low, interval.high) == pytest.approx((1000, 800, 1250))
    assert (far.setting, near.setting) == ((("hook", "fp16"),), ())
    assert (bool(far.outside), bool(near.outside)) == (True, False)
    assert found.worst_error == 0.13
    assert predicted_table.predicted_grid(found).rows == [
        ("16", "hook fp16", "1000 [800, 1250]", "more ranks than were measured"),
        ("4", "as recorded", "400 [320, 500]", "inside"),
    ]
    assert "13.0%" in predicted_table.legend(found)


def test_the_predict_command_s_json_is_read(tmp_path: Path) -> None:
    setting = Scenario(8, bandwidth_bytes_per_s=1.25e9, latency_s=2e-5, hook="", ranks_per_host=4.0)
    figures = dict.fromkeys(
        ("wait_s", "transfer_s", "hidden_s", "compute_s", "no_overlap_s", "perfect_overlap_s"), 0.01
    )
    prediction = Prediction(
        setting,
        Estimate(0.1, 0.09, 0.11),
        **figures,
        waiting=PredictedWaiting(*[Estimate(0.01, 0.01, 0.01)] * 4),
        buckets=2,
        sent_bytes=1e6,
        samples_per_s=800.0,
        efficiency=0.9,
        hiding_bytes_per_s=math.nan,
        outside=("8 ranks (measured: 2, 4)",),
        remarks=(),
    )
    answer = Answer(prediction, Estimate(0.1, 0.08, 0.125), None, math.nan, None)
    answers = Answers((answer,), (), ModelError(0.02, 0.07, 3, 0.15), None, ())
    path = tmp_path / "p.json"
    path.write_text(prediction_json.render(answers, "a run", "measured", ()))
    found = read_predictions(path)
    assert found.worst_error == 0.07
    (point,) = found.points
    assert point.samples_per_s.low == pytest.approx(640)
    assert predicted_table.setting_text(point) == ("10 Gbit/s, 20 µs, hook none, 4 ranks per host")


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (
            {"bucket_cap_bytes": 25 * 2**20, "scaling": "strong"},
            "strong scaling, bucket cap 25 MiB",
        ),
        ({"bucket_cap_bytes": "inf", "hook": ""}, "hook none, one bucket"),
        (
            {"reshard_after_forward": False, "accumulate": 4, "gather_dtype": "bf16"},
            "resharding off, 4 backward passes per step, parameters gathered in bf16",
        ),
        ({"of_a_newer_version": 3}, "of_a_newer_version 3"),
    ],
)
def test_a_predicted_setting_is_described_in_words(
    tmp_path: Path, scenario: dict[str, Any], words: str
) -> None:
    path = write_predictions(tmp_path / "p.json", answer(4, 400.0, **scenario))
    (point,) = read_predictions(path).points
    assert predicted_table.setting_text(point) == words


@pytest.mark.parametrize("scenario", [{"accumulate": "4"}, {"bucket_cap_bytes": "25"}])
def test_a_predicted_setting_of_the_wrong_type_is_refused(
    tmp_path: Path, scenario: dict[str, Any]
) -> None:
    path = write_predictions(tmp_path / "p.json", answer(4, 400.0, **scenario))
    with pytest.raises(
        CommprofError, match=f"holds no predictions .*{next(iter(scenario))} is not"
    ):
        read_predictions(path)


def test_without_held_out_steps_the_prediction_error_is_unknown(tmp_path: Path) -> None:
    found = read_predictions(write_predictions(tmp_path / "p.json", answer(4, 1.0), error=None))
    assert found.worst_error is None
    assert "not known" in predicted_table.legend(found)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 2, "answers": [{}]}', "\xff"])
def test_files_without_predictions_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CommprofError, match="commprof predict RUN --format json"):
        read_predictions(tmp_path / "p.json")


def test_missing_or_newer_prediction_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CommprofError, match="cannot be read"):
        read_predictions(tmp_path / "none")
    newer = write_predictions(tmp_path / "p.json", schema_version=3)
    with pytest.raises(CommprofError, match="schema_version 3, not 2"):
        read_predictions(newer)
