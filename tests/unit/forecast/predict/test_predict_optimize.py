from __future__ import annotations

import json
import math

import numpy as np
import numpy.typing as npt
import pytest

from commprof.errors import CommprofError, UsageError
from commprof.forecast.costs.hook_costs import HookCost
from commprof.forecast.replay.recorded import RecordedJob
from commprof.forecast.replay.replay import Replay
from commprof.forecast.report import as_json as prediction_json
from commprof.forecast.report import table as prediction_table
from commprof.forecast.scenario.scenario import Prediction, Scenario
from commprof.forecast.what_if.answers import Answers, answer
from commprof.forecast.what_if.optimize import CAPS_BYTES, optimize
from tests.support.builders.schedules import hook, profile, schedule


def replay(*hooks: HookCost) -> Replay:
    return Replay(schedule(), profile(hooks=hooks))


def answers(over: list[str] | None, measured_ms: float | None = None) -> Answers:
    """The model predicts 55 ms for 4 ranks, which took ``measured_ms``."""
    made = replay(hook())
    others = []
    if measured_ms is not None:
        period_s = np.full(5, measured_ms / 1e3)
        others = [RecordedJob("RUN, 4 ranks", schedule(ranks=4, period_s=period_s), ())]
    return answer(made, [Scenario(2)], [], others, over, math.nan)


def told(found: Answers) -> str:
    return " ".join(prediction_table.render(found, "RUN", "by hand", [], 100).split())


def test_the_search_finds_the_best_setting_with_its_certainty() -> None:
    found = optimize(replay(hook()), Scenario(2), ["hook"])
    best, *others = found.candidates
    assert best.prediction.scenario.hook == "fp16"
    assert best.gain == pytest.approx(1 - 0.034 / 0.040)
    assert best.certainty == 1.0
    assert [other.gain for other in others] == pytest.approx([0.0])
    assert (found.hooks, found.has_no_hook, found.refused) == ((None, "fp16"), False, ())
    with pytest.raises(UsageError, match="allowed: bucket-cap, hook"):
        optimize(replay(), Scenario(2), ["batch"])


@pytest.mark.parametrize(
    ("worst_error", "beyond", "is_gain"),
    [(0.10, 1.0, True), (0.20, 0.0, False), (math.nan, math.nan, None)],
)
def test_a_saving_is_a_gain_only_beyond_the_model_s_error(
    worst_error: float, beyond: float, is_gain: bool | None
) -> None:
    best, own = optimize(replay(hook()), Scenario(2), ["hook"], worst_error).candidates
    assert best.certainty_beyond_error == pytest.approx(beyond, nan_ok=True)
    assert (best.certainty, best.is_gain) == (1.0, is_gain)
    assert own.is_gain is (None if is_gain is None else False)


def test_a_saving_whose_interval_reaches_into_the_error_is_no_gain() -> None:
    # fp16 saves 15 % in the median, and 11.1 % on the fast link (32 ms instead of 36 ms).
    links = tuple(((0.0, b),) for b in (0.8e-8, 1e-8, 1.2e-8))
    made = Replay(schedule(), profile(hooks=(hook(),), replicates=links))
    (best, _) = optimize(made, Scenario(2), ["hook"], 0.13).candidates
    assert best.gain_low < 0.13 < best.gain
    assert best.is_gain is False
    assert 0 < best.certainty_beyond_error < 1


def test_the_table_recommends_a_gain_beyond_the_error() -> None:
    text = told(answers(["hook"], measured_ms=50))
    assert (
        "Best: bucket cap as run, hook fp16. It saves 15.0% of the step (15.0% to 15.0%); the "
        "low end of this range is above the model's largest error on held-out steps (10.0%)."
        in text
    )
    assert "Compared: bucket cap as run; hook as run, fp16." in text


def test_the_table_says_that_a_gain_within_the_error_is_not_certain() -> None:
    text = told(answers(["hook"], measured_ms=55 / 1.2))
    assert (
        "No setting is certain to gain anything: the fastest setting whose whole interval is "
        "above zero (bucket cap as run, hook fp16) would save 15.0% of the step (15.0% to 15.0%), "
        "but the low end of this range is not above the model's largest error on held-out steps "
        "(20.0%)." in text
    )
    assert "It saves" not in text


def test_the_table_says_that_a_saving_may_be_an_error_if_the_error_is_unknown() -> None:
    text = told(answers(["hook"]))
    assert "would save 15.0% of the step (15.0% to 15.0%). This saving may be an error" in text
    assert "--check" in text
    assert "It saves" not in text


def test_without_a_hook_s_cost_the_table_says_how_to_measure_one() -> None:
    found = answer(replay(), [Scenario(2)], [], [], ["hook"], math.nan)
    search = found.answers[0].search
    assert search is not None
    assert (len(search.candidates), search.has_no_hook) == (1, True)
    text = told(found)
    assert "No hook's cost was measured, so no such hook was compared." in text
    assert "--hook fp16 --output RUN_WITH_HOOK, then commprof fit RUN RUN_WITH_HOOK" in text
    assert "No other setting was compared with the given one." in text
    assert "No setting is certain" not in text


def test_a_run_with_a_hook_is_compared_with_no_hook() -> None:
    made = Replay(schedule(hook="fp16"), profile(hooks=(hook(),)))
    search = optimize(made, Scenario(2), ["hook"])
    assert (search.hooks, search.has_no_hook) == ((None, ""), True)
    found = answer(made, [Scenario(2)], [], [], ["hook"], math.nan)
    assert "No other hook's cost was measured" in told(found)
    assert made.predict(Scenario(2)).remarks == ()
    (remark,) = made.predict(Scenario(2, hook="")).remarks
    assert "includes the slowdown by the run's hook fp16" in remark


def test_a_hook_given_by_its_scheme_s_name_is_compared_once() -> None:
    made = Replay(schedule(), profile(hooks=(hook("topk:ratio=0.01"), hook("fp16"))))
    search = optimize(made, Scenario(2, hook="topk"), ["hook"])
    assert search.hooks == ("topk", "", "fp16")
    of_two = profile(hooks=(hook("topk:ratio=0.01"), hook("topk:ratio=0.1")))
    search = optimize(Replay(schedule(), of_two), Scenario(2, hook="topk:ratio=0.1"), ["hook"])
    assert search.hooks == ("topk:ratio=0.1", "", "topk:ratio=0.01")


def test_the_table_names_all_compared_settings() -> None:
    found = answers(["bucket-cap"], measured_ms=50)
    search = found.answers[0].search
    assert search is not None
    assert (search.bucket_caps_bytes[1:], search.has_no_hook) == (CAPS_BYTES, False)
    assert len(search.candidates) + search.same_count == len(CAPS_BYTES) + 1
    text = told(found)
    assert "Compared: bucket cap as run, 1, 2, 5, 10, 25, 50, 100, all MiB; hook as run." in text
    assert f"left out, as another cap makes the same buckets: {search.same_count}." in text


def test_the_table_names_the_unit_of_a_single_bucket_cap() -> None:
    asked = [Scenario(2, bucket_cap_bytes=5 * 2.0**20)]
    text = told(answer(replay(hook()), asked, [], [], ["hook"], math.nan))
    assert (
        "the fastest setting whose whole interval is above zero (bucket cap 5 MiB, hook fp16) "
        "would save" in text
    )
    assert "Compared: bucket cap 5 MiB; hook as run, fp16." in text


def test_a_table_of_the_best_settings_gives_the_number_compared() -> None:
    found = answers(["bucket-cap", "hook"])
    search = found.answers[0].search
    assert search is not None
    assert len(search.candidates) > 5
    assert f"Best 5 of {len(search.candidates)} settings at 2 ranks, the best first:" in told(found)
    assert "Settings at 2 ranks, the best first:" in told(answers(["hook"]))


class WithoutFp16(Replay):
    def sampled(self, scenario: Scenario) -> tuple[Prediction, npt.NDArray[np.float64]]:
        if scenario.hook == "fp16":
            raise CommprofError("fp16 was measured on another link; record it here")
        return super().sampled(scenario)


def test_settings_that_cannot_be_predicted_are_listed_with_the_reason() -> None:
    made = WithoutFp16(schedule(), profile(hooks=(hook(), hook("int8"))))
    search = optimize(made, Scenario(2), ["hook"])
    assert [each.hook for each in search.refused] == ["fp16"]
    assert [each.prediction.scenario.hook for each in search.candidates] == ["int8", None]
    found = answer(made, [Scenario(2)], [], [], ["bucket-cap", "hook"], math.nan)
    assert (
        "- Not compared: bucket cap as run, 1, 2, 5, 10, 25, 50, 100, all MiB with hook fp16: fp16 "
        "was measured on another link; record it here." in told(found)
    )
    document = json.loads(prediction_json.render(found, "RUN", "by hand", []))
    (first, *_) = document["answers"][0]["search"]["refused"]
    assert first["bucket_cap_bytes"] is None
    assert (first["hook"], first["reason"][:16]) == ("fp16", "fp16 was measure")


def test_json_has_the_candidates_and_the_scope_of_a_search() -> None:
    (given,) = json.loads(
        prediction_json.render(answers(["hook"], measured_ms=50), "RUN", "by hand", [])
    )["answers"]
    best, own = given["candidates"]
    assert best["prediction"]["exposed_s"] == pytest.approx(0.014)
    assert (best["certainty"], best["certainty_beyond_error"], best["is_gain"]) == (1.0, 1.0, True)
    assert own["is_gain"] is False
    assert given["search"] == {
        "refused": [],
        "bucket_caps_bytes": [None],
        "hooks": [None, "fp16"],
        "same_count": 0,
        "has_no_hook": False,
    }
    (unknown,) = json.loads(prediction_json.render(answers(["hook"]), "RUN", "by hand", []))[
        "answers"
    ]
    assert unknown["candidates"][0]["is_gain"] is None
    assert unknown["candidates"][0]["certainty_beyond_error"] is None
    (without,) = json.loads(prediction_json.render(answers(None), "RUN", "by hand", []))["answers"]
    assert (without["candidates"], without["search"]) == ([], None)
