from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from commprof.commands.options.quantities import duration, listed, rate, whole
from commprof.errors import CommprofError, UsageError
from commprof.forecast.commands.predict import _hook_words
from commprof.forecast.costs.cost_model import HeldOut
from commprof.forecast.costs.machine_profile import load_profile, save_profile
from commprof.forecast.fit.held_out import HeldOutCheck, model_error
from commprof.forecast.replay.recorded import (
    RecordedJob,
    base_of,
    compute_by_batch,
    with_free_share,
)
from commprof.forecast.replay.replay import Replay
from commprof.forecast.report import as_json as prediction_json
from commprof.forecast.report import profile_table
from commprof.forecast.report import table as prediction_table
from commprof.forecast.report.cells import scenario_cells
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.scenario.schedule import Placement, StepBatch
from commprof.forecast.what_if.answers import Answers, answer, fit_amdahl
from tests.support.builders.schedules import hook, profile, schedule


def answers(price: float = math.nan, over: list[str] | None = None) -> Answers:
    made = Replay(schedule(), profile(hooks=(hook(),)))
    other = RecordedJob("RUN, 4 ranks", schedule(ranks=4, period_s=np.full(5, 0.050)), ())
    base = RecordedJob("RUN, 2 ranks", made.schedule, ())
    return answer(made, [Scenario(2), Scenario(128)], [base, other], [other], over, price)


def test_amdahl_s_law_is_fitted_exactly_to_exact_points() -> None:
    fit = fit_amdahl({n: 100 / (0.1 + 0.9 / n) for n in (1, 2, 4, 8)})
    assert fit.parallel == pytest.approx(0.9)
    assert fit.residuals == pytest.approx((0, 0, 0), abs=1e-12)
    assert (fit.limit, fit.speedup(9)) == (pytest.approx(10), pytest.approx(5))


def test_amdahl_fit_has_residuals_and_needs_three_world_sizes() -> None:
    fit = fit_amdahl({1: 100, 2: 250, 4: 400})
    assert fit.parallel == 1.0
    assert fit.residuals == pytest.approx((2 / 2.5 - 1, 0.0))
    with pytest.raises(CommprofError, match="--world-sizes 1,2,4"):
        fit_amdahl({1: 100, 2: 190})


def test_cost_and_bytes_of_an_epoch() -> None:
    found = answers(price=3.6).answers[0]
    assert found.cost is not None
    assert found.cost.per_1000_samples == pytest.approx(2 * 3.6 / 3600 / 400 * 1000)
    assert found.cost.per_epoch == pytest.approx(2 * 3.6 / 3600 / 400 * 160)
    assert found.epoch_sent_bytes == pytest.approx(10 * 3e6)
    made = Replay(schedule(batch=StepBatch(0, 0, "")), profile())
    unknown = answer(made, [Scenario(2)], [], [], None, 1.0)
    assert unknown.answers[0].cost is None
    assert any("the number of samples per step" in note for note in unknown.notes)


def test_ranks_spread_unevenly_are_priced_for_their_number_of_hosts() -> None:
    made = Replay(schedule(ranks=15, placement=Placement(15 / 13, 4.0, 1, 1.0)), profile())
    found = answer(made, [Scenario(15)], [], [], None, 1.0).answers[0]
    assert found.cost is not None
    assert found.cost.hosts == 13


def test_the_predicted_interval_includes_the_held_out_error() -> None:
    found = answers()
    assert found.error is not None
    assert found.error.worst == pytest.approx(0.10)
    interval = found.answers[0].interval_s
    assert (interval.low, interval.high) == (
        pytest.approx(0.040 / (1 + found.error.margin)),
        pytest.approx(0.040 * (1 + found.error.margin)),
    )


def test_the_error_margin_is_wider_with_few_held_out_errors() -> None:
    # Student's t at 97.5 % is 3.182, 2.776 and 2.447 for 3, 4 and 6 degrees of freedom.
    # The model adds two errors of 4 %.
    for errors, expected in (
        ((0.01,), 3.182 * math.sqrt((0.0032 + 0.0001) / 3)),
        ((0.04, -0.04), 2.776 * 0.04),
        ((0.03, 0.0, -0.01, 0.01), 2.447 * math.sqrt((0.0032 + 0.0011) / 6)),
    ):
        checked = [HeldOutCheck("a", 2, 1.0, 1 + error, True, 2.0, 0.5) for error in errors]
        error = model_error(checked)
        assert error is not None
        assert error.margin == pytest.approx(expected, rel=1e-3)


def test_without_a_held_out_point_ranges_are_not_shown_as_intervals() -> None:
    """Ranges without a held-out error contained only 3 of 9 real runs."""
    checked = answers()
    alone = dataclasses.replace(checked, checks=(), error=None)
    for found, holds in ((checked, True), (alone, False)):
        document = json.loads(prediction_json.render(found, "RUN", "costs", []))
        assert document["interval_holds_held_out_error"] is holds
        text = prediction_table.render(found, "RUN", "costs", [], 200)
        step = next(line for line in text.splitlines() if line.split()[:1] == ["2"])
        assert ("[" in step, " to " in step) == (holds, not holds)
        assert ("real steps can lie outside of it" in " ".join(text.split())) is not holds


def test_a_machine_profile_is_unchanged_after_writing_and_reading(tmp_path: Path) -> None:
    made = profile(bytes_per_s=1e9, hooks=(hook(),), alpha_s=1e-5, residual=0.01)
    path = tmp_path / "new" / "profile.json"
    save_profile(made, path)
    text = path.read_text()
    assert "NaN" not in text
    again = load_profile(path)
    save_profile(again, path)
    assert path.read_text() == text
    curve = again.links["other_host"].curves["all_reduce"]
    assert [piece.low_bytes for piece in curve.pieces] == [0.0, 2 * 1e-5 / 1e-8]
    assert math.isnan(again.links["other_host"].latency_s)
    assert again.hooks["fp16"].encode == (0.0, 1e-9)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "commprof fit"),
        ('{"kind": "commprof machine profile", "schema_version": 99}', "version 99"),
        ('{"kind": "commprof machine profile", "schema_version": 1}', "damaged"),
    ],
)
def test_files_that_are_no_machine_profile_are_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(CommprofError, match=complaint):
        load_profile(path)


def test_the_base_run_is_the_largest_with_cores_for_all_ranks_unless_named() -> None:
    crowded = schedule(ranks=8, placement=Placement(8, 4.0, 1, 1.0))
    runs = [RecordedJob(str(s.world_size), s, ()) for s in (schedule(ranks=1), schedule(), crowded)]
    assert base_of(runs).name == "2"
    assert base_of(runs, 8).name == "8"
    with pytest.raises(CommprofError, match="others that can: 1, 2, 8"):
        base_of(runs, 3)
    left_out = r"others that can: none.*\n  left out: no trace of rank 1"
    with pytest.raises(CommprofError, match=left_out):
        base_of([], refused=["no trace of rank 1"])


def test_the_processor_share_of_crowded_ranks_is_taken_from_uncrowded_runs() -> None:
    def recorded(*ranks_and_busy: tuple[int, float]) -> list[RecordedJob]:
        found = [
            RecordedJob(str(n), schedule(ranks=n, placement=Placement(n, 2.0, 1, busy)), ())
            for n, busy in ranks_and_busy
        ]
        return with_free_share(found)

    runs = recorded((1, 0.99), (2, 0.97), (4, 0.5), (8, 0.248))
    assert base_of(runs).name == "2"
    assert runs[3].schedule.placement.crowding() == pytest.approx(8 * 0.99 / 2)
    assert [each.schedule.placement.busy for each in runs[:2]] == [0.99, 0.97]
    assert base_of(recorded((2, 0.1), (8, 0.09))).name == "8"
    assert base_of(recorded((4, 0.1), (8, 0.1))).name == "8"
    assert recorded((8, 0.248))[0].schedule.placement.crowding() == 4


def test_compute_time_is_split_into_fixed_and_per_sample_parts() -> None:
    # 8 samples take 20 ms and 4 samples take 12 ms: 4 ms plus 2 ms per sample.
    small = schedule(backward_end_ms=12, batch=StepBatch(4.0, 10, "strong"))
    runs = [RecordedJob("", each, ()) for each in (schedule(), small)]
    assert compute_by_batch(runs, schedule()) == pytest.approx((0.004, 0.002))
    assert compute_by_batch(runs[:1], schedule()) is None


def test_the_prediction_table_has_settings_errors_warnings_and_cost_of_hooks() -> None:
    found = answers(price=3.6, over=["hook"])
    text = prediction_table.render(found, "RUN, 2 ranks", "by hand", ["1 rank: too few"], 100)
    rows = [line.split() for line in text.splitlines()]
    assert ["2", "as", "run", "as", "run", "as", "run", "as", "run", "2", "40"] in [
        row[:11] for row in rows
    ]
    assert "Held-out error of this model on this machine: 10.0% on average, 10.0% at worst" in text
    assert "* Outside the measured range: 128 ranks (measured: 2, 64)." in text
    assert "It saves 15.0% of the step" in text
    assert "1 rank: too few" in text


def told(*scenarios: Scenario, price: float = math.nan) -> str:
    made = Replay(schedule(), profile(bytes_per_s=1.25e8, latency_s=0.0, hooks=(hook(),)))
    found = answer(made, list(scenarios), [], [], None, price)
    return prediction_table.render(found, "RUN", "by hand", [], 200)


def test_the_cost_table_has_a_row_per_scenario() -> None:
    rates = [
        Scenario(2, bandwidth_bytes_per_s=rate, hook=hook_)
        for rate in (1.25e8, 2.5e8)
        for hook_ in ("", "fp16")
    ]
    text = told(*rates, price=3.6)
    table = text.split("cost per")[1]
    rows = [line.split() for line in table.splitlines() if line.strip().startswith("2 ")]
    # Each "as run" in a row counts as two words.
    assert [(row[1], row[6], row[-1]) for row in rows] == [
        *(("1", "none", "0.03"), ("1", "fp16", "0.015")),
        *(("2", "none", "0.03"), ("2", "fp16", "0.015")),
    ]
    assert len({row[-3] for row in rows}) == 4
    without = told(*rates).split("GB/epoch")[1]
    assert sum(line.split()[-1:] == ["0.015"] for line in without.splitlines()) == 2


def test_latencies_and_bucket_caps_from_1000_on_have_all_their_digits() -> None:
    scenario = Scenario(2, latency_s=1.25e-3, bucket_cap_bytes=1024 * 2.0**20)
    assert scenario_cells(scenario) == ("2", "as run", "1250", "1024", "as run")


def test_the_prediction_table_names_the_settings_common_to_all_rows() -> None:
    text = told(Scenario(4, ranks_per_host=1, cores_per_host=8))
    assert (
        "Weak scaling (fixed batch per rank), flat all-reduce, ranks per host: 1, cores per "
        "host: 8." in text
    )
    assert "ranks per host: as run, cores per host: as run." in told(Scenario(2))


def test_throughput_and_efficiency_have_intervals_from_the_step_s_interval() -> None:
    (found, _) = answers().answers
    assert found.samples_per_s.value == pytest.approx(400)
    # One held-out error of 10 % gives a margin of 3.182 * sqrt((0.0032 + 0.01) / 3) = 21.1 %.
    assert found.samples_per_s.low == pytest.approx(400 / 1.2111, rel=1e-4)
    assert found.samples_per_s.high == pytest.approx(400 * 1.2111, rel=1e-4)
    expected = (0.5 / 1.2111, 0.5 * 1.2111)
    assert (found.efficiency.low, found.efficiency.high) == pytest.approx(expected, rel=1e-4)
    alone = dataclasses.replace(found.prediction, efficiency=0.99)
    assert dataclasses.replace(found, prediction=alone).efficiency.high == 1.0
    text = prediction_table.render(answers(), "RUN", "by hand", [], 200)
    assert "400 [330, 484]" in text
    assert "50.0% [41.3%, 60.6%]" in text


def test_efficiency_is_at_most_one_if_the_predicted_rank_is_a_fast_one() -> None:
    uneven = schedule()
    uneven.backward_end_s[:, 1] += 0.005
    found = Replay(uneven, profile()).predict(Scenario(1))
    assert found.step_s.value == pytest.approx(0.020)
    assert found.efficiency == 1.0


def test_the_prediction_table_has_ranges_of_exposed_and_hidden_time() -> None:
    uncertain = profile(replicates=tuple(((0.0, b),) for b in (0.9e-8, 1e-8, 1.1e-8)))
    found = answer(Replay(schedule(), uncertain), [Scenario(2)], [], [], None, math.nan)
    text = prediction_table.render(found, "RUN", "by hand", [], 200)
    row = next(line for line in text.splitlines() if line.split()[:2] == ["2", "as"])
    assert re.split(r"\s{2,}", row.strip())[7:10] == ["0", "20 (18 to 23)", "10 (9 to 10)"]


def test_the_prediction_table_says_that_there_is_no_held_out_step() -> None:
    made = Replay(schedule(), profile(held_out_size=HeldOut(0.02, 0.05, 9)))
    found = answer(made, [Scenario(2)], [], [], None, math.nan)
    text = prediction_table.render(found, "RUN", "by hand", [], 100)
    assert "Held-out error: not known" in text
    assert "--check" in text
    said = "is wrong by 2.0% on average and 5.0% at worst for sizes that were left out of the fit"
    assert said in " ".join(text.split())


def test_prediction_json_has_null_instead_of_nan() -> None:
    document = json.loads(prediction_json.render(answers(), "RUN", "by hand", []))
    first = document["answers"][0]
    assert first["prediction"]["step_s"]["value"] == pytest.approx(0.040)
    assert first["prediction"]["scenario"]["bandwidth_bytes_per_s"] is None
    assert first["prediction"]["exposed_s"] == pytest.approx(0.020)
    waiting = first["prediction"]["waiting"]
    assert list(waiting) == ["wait_s", "transfer_s", "exposed_s", "hidden_s"]
    assert waiting["exposed_s"] == pytest.approx({"value": 0.02, "low": 0.02, "high": 0.02})
    assert first["samples_per_s"]["low"] == pytest.approx(400 / 1.2111, rel=1e-4)
    assert document["amdahl"] is None
    assert document["error"]["worst"] == pytest.approx(0.10)
    assert document["checks"][1]["error"] == pytest.approx(0.10)


def test_prediction_json_has_amdahl_s_residuals_and_limit() -> None:
    def known(ranks: int, period_ms: float) -> RecordedJob:
        made = schedule(ranks=ranks, period_s=np.full(5, period_ms / 1e3))
        return RecordedJob(f"{ranks}", made, ())

    runs = [known(1, 40), known(2, 50), known(4, 80)]
    found = answer(Replay(schedule(), profile()), [Scenario(2)], runs, [], None, math.nan)
    document = json.loads(prediction_json.render(found, "RUN", "by hand", []))
    assert found.amdahl is not None
    assert document["amdahl"]["limit"] == pytest.approx(found.amdahl.limit)
    assert document["amdahl"]["residuals"] == pytest.approx(list(found.amdahl.residuals))
    assert document["amdahl"]["parallel"] < 1


def test_the_profile_table_shows_links_and_hooks() -> None:
    text = profile_table.render(profile(bytes_per_s=1.25e8, alpha_s=1e-5, hooks=(hook(),)), 100)
    assert "Links of class other host (stated: 1 Gbit/s):" in text
    assert "0.1" in text
    assert "fp16" in text
    legend = " ".join(text.split())
    assert "residual, step: mean error of the times at which the exchanges of buckets end" in legend


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("100Gbps", 12.5e9), ("100Gb/s", 12.5e9), ("100Gbit/s", 12.5e9), ("2.5gbps", 312.5e6)),
        *(("1 GB/s", 1e9), ("12MBps", 12e6), ("800kB/s", 8e5)),
    ],
)
def test_rates_are_parsed_in_bits_or_bytes_per_second(text: str, value: float) -> None:
    assert rate("--bandwidth", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["3gb/s", "12mb/s", "1GBPS", "1gB/S"])
def test_a_rate_that_may_be_in_bits_or_in_bytes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"25Gbps, 100Mbps \(bits\) or 3GB/s \(bytes\)"):
        rate("--bandwidth", text)


def test_unreadable_quantities_are_refused_with_the_option_s_name() -> None:
    assert duration("--latency", "20us") == pytest.approx(20e-6)
    for text in ("100", "fast", "-1Gbps", "1 Gfoo", "0Gbps"):
        with pytest.raises(UsageError, match="--bandwidth"):
            rate("--bandwidth", text)
    with pytest.raises(UsageError, match="whole number"):
        listed("--world-size", "2,x", whole, 1)
    assert listed("--world-size", "2,4", whole, 1) == [2, 4]
    assert listed("--world-size", None, whole, 1) == [1]


def test_hooks_in_a_list_keep_their_options() -> None:
    assert _hook_words("none,topk:ratio=0.01,feedback=1,fp16") == [
        "none",
        "topk:ratio=0.01,feedback=1",
        "fp16",
    ]
