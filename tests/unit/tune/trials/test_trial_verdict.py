from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from commprof.tune.trials.break_even import BreakEvenCosts, break_even, no_break_even
from commprof.tune.trials.candidates import ROLES, parse_candidate
from commprof.tune.trials.verdict import (
    TrialSetting,
    apply,
    judge,
)
from tests.support.builders.trial_results import RUN, trial

MB, MS = 1e6, 1e6


def found(
    plain: float, wire: float, coding: float, slowdown: float, hidden: float, spread: float = 0.0
):
    """``plain`` and ``wire`` are in MB; ``coding``, ``slowdown`` and ``hidden`` are in ms."""
    noise = 1 + spread * np.array([1, -1, 1, -1, 1, -1, 1, -1])
    return break_even(
        BreakEvenCosts(
            plain * MB * noise,
            wire * MB * noise,
            coding * MS * noise,
            slowdown * MS * noise,
            hidden * MS * noise,
        )
    )


def test_break_even_is_the_saved_bytes_divided_by_the_added_time() -> None:
    # 24e6 saved bits divided by 6e6 ns, for coding and a longer step, are 4 Gbit/s.
    result = found(plain=4, wire=1, coding=4, slowdown=2, hidden=0.1)
    assert result is not None
    assert result.pays == "below"
    assert result.gbit_per_s is not None
    assert result.gbit_per_s.value == pytest.approx(4.0)
    assert result.gbit_per_s.low == pytest.approx(4.0)


def test_break_even_is_limited_to_the_bandwidth_that_hides_all_communication() -> None:
    # At 2 Gbit/s, the 32e6 bits of 4 MB take 16 ms, and 14 ms + 2 ms can hide them.
    result = found(plain=4, wire=1, coding=4, slowdown=2, hidden=14)
    assert result is not None
    assert result.gbit_per_s is not None
    assert result.gbit_per_s.value == pytest.approx(2.0)


def test_a_step_that_got_faster_elsewhere_does_not_raise_the_break_even() -> None:
    result = found(plain=4, wire=1, coding=6, slowdown=-3, hidden=0.1)
    assert result is not None
    assert result.gbit_per_s is not None
    assert result.gbit_per_s.value == pytest.approx(4.0)


def test_a_candidate_that_saves_no_bytes_never_pays() -> None:
    result = found(plain=4, wire=5, coding=1, slowdown=0, hidden=1)
    assert result is not None
    assert (result.pays, result.gbit_per_s) == ("never", None)


def test_a_candidate_that_costs_no_time_always_pays() -> None:
    result = found(plain=4, wire=1, coding=0, slowdown=0, hidden=0)
    assert result is not None
    assert (result.pays, result.gbit_per_s) == ("always", None)


def test_the_break_even_s_interval_comes_from_the_rounds() -> None:
    draw = np.random.default_rng(3).normal(1, 0.1, size=8)
    ones = np.ones(8)
    result = break_even(
        BreakEvenCosts(4 * MB * ones, MB * ones, 6 * MS * draw, 0 * ones, 0.1 * MS * ones)
    )
    assert result is not None
    assert result.gbit_per_s is not None
    assert result.gbit_per_s.low < result.gbit_per_s.value < result.gbit_per_s.high
    assert result.gbit_per_s.value == pytest.approx(24 / (6 * np.median(draw)))


def test_break_even_is_none_with_unmeasured_bytes_or_too_few_rounds() -> None:
    ones = np.ones(8)
    assert break_even(BreakEvenCosts(ones, np.full(8, np.nan), ones, ones, ones)) is None
    assert break_even(BreakEvenCosts(*[np.ones(2)] * 5)) is None


@pytest.mark.parametrize(
    ("label", "answer", "reason"),
    [
        ("bucket-cap=5", "does not apply", "the same bytes are sent in other buckets"),
        ("no-overlap", "does not apply", "the same bytes are sent at another time"),
        ("hierarchical", "does not apply", "bytes within a host go through memory"),
        ("int8:hierarchical=1+bucket-cap=5", "does not apply", "bytes within a host go through"),
        (
            "int8",
            "not known",
            "compressors that run as torch operations record neither bytes nor times, and only "
            "fp32 gradients are compressed",
        ),
    ],
)
def test_a_missing_break_even_has_the_reason_for_the_candidate(
    label: str, answer: str, reason: str
) -> None:
    found = no_break_even(parse_candidate(label), rounds=8, is_recorded=False)
    assert found is not None
    assert found.answer == answer
    assert found.reason.startswith(reason)


def test_a_missing_break_even_names_too_few_rounds_or_missing_measurements() -> None:
    int8 = parse_candidate("int8")
    short, missing = no_break_even(int8, 2, True), no_break_even(int8, 8, True)
    assert short is not None
    assert missing is not None
    assert short.reason == "at least 3 complete rounds are needed"
    assert missing.reason == "bytes or times needed to compute the bandwidth were not measured"
    assert [no_break_even(role, 8, False) for role in ROLES] == [None] * 3


QUIET = 0.005
BASE_TIMES = {"none": (100.0, QUIET), "none again": (100.2, QUIET), "noop": (40.0, QUIET)}


def test_a_clear_winner_is_recommended_with_its_interval() -> None:
    verdict = trial({**BASE_TIMES, "fp16": (70.0, QUIET), "int8": (50.0, QUIET)}).verdict
    assert (verdict.answer, verdict.choice) == ("use", "int8")
    assert verdict.gain is not None
    assert verdict.gain.value == pytest.approx(0.5, abs=0.01)
    assert 0.48 < verdict.gain.low < verdict.gain.value < verdict.gain.high < 0.52
    ceiling, bound, use, price = verdict.sentences
    assert ceiling.startswith("Without any exchange a step is 60.0 % [")
    assert bound == (
        "The step of 100 ms is bound by waiting for communication: waiting for communication 60%, "
        "backward 30%, reading data 10%."
    )
    assert use.startswith("Use int8: a step is 50.0 % [")
    assert "2.00 times as fast" in use
    assert "changes gradients by 0.01 of their norm (cosine 0.9999)" in price
    assert verdict.apply == "commprof run --nproc 2 --hook int8 train.py"


def test_below_ten_percent_of_headroom_no_candidate_is_recommended() -> None:
    steps = {**BASE_TIMES, "noop": (92.0, QUIET), "int8": (50.0, QUIET)}
    verdict = trial(steps).verdict
    assert (verdict.answer, verdict.choice, verdict.apply) == ("not-the-bottleneck", "", "")
    assert "Communication is not the bottleneck" in verdict.sentences[-1]
    assert verdict.sentences[-1].endswith("Look at backward first.")


def test_with_a_noisy_headroom_the_verdict_is_unknown() -> None:
    verdict = trial({**BASE_TIMES, "noop": (97.0, 0.5), "int8": (50.0, QUIET)}).verdict
    assert (verdict.answer, verdict.choice) == ("unknown", "")
    assert verdict.sentences[-1].startswith("Too noisy to say")


def test_without_noop_a_candidate_can_still_be_recommended() -> None:
    steps = {"none": (100.0, QUIET), "none again": (100.0, QUIET), "int8": (50.0, QUIET)}
    verdict = trial(steps).verdict
    assert verdict.answer == "use"
    assert verdict.sentences[0].startswith("The step of 100 ms is bound by")


def test_a_candidate_whose_gain_may_be_zero_is_not_recommended() -> None:
    verdict = trial({**BASE_TIMES, "int8": (98.0, 0.08), "fp16": (120.0, QUIET)}).verdict
    assert (verdict.answer, verdict.choice, verdict.gain) == ("none", "", None)
    assert "no candidate makes the step shorter with certainty" in verdict.sentences[-1]


def test_a_gain_below_the_difference_of_identical_controls_is_not_recommended() -> None:
    steps = {**BASE_TIMES, "none again": (94.0, QUIET), "int8": (97.0, QUIET)}
    verdict = trial(steps).verdict
    assert verdict.answer == "none"
    assert "`none` and `none again`, which are identical, differ by" in verdict.sentences[-1]
    noisy = trial({**steps, "fp16": (90.0, 0.2)}).verdict
    assert noisy.sentences[-1].startswith("Change nothing: the best candidate, int8, saves 2.9 % [")


def test_of_equally_fast_candidates_the_one_that_changes_gradients_least_is_chosen() -> None:
    steps = {**BASE_TIMES, "topk:ratio=0.01": (50.0, 0.02), "int8": (50.3, 0.02)}
    result = trial(steps, errors={"topk:ratio=0.01": 0.9, "int8": 0.008})
    assert result.verdict.choice == "int8"
    assert any(
        "topk:ratio=0.01 did not differ measurably in speed from int8, which" in said
        for said in result.verdict.sentences
    )
    lossless = trial({**BASE_TIMES, "int8": (50.0, 0.02), "bucket-cap=5": (50.2, 0.02)})
    assert lossless.verdict.choice == "bucket-cap=5"
    assert lossless.verdict.sentences[-1] == (
        "It changes no result: the gradients have the same bits."
    )


def test_of_equally_fast_uncompressed_candidates_the_exact_one_is_chosen() -> None:
    steps = {**BASE_TIMES, "hierarchical": (50.0, 0.02), "bucket-cap=5": (50.2, 0.02)}
    verdict = trial(steps, errors={"hierarchical": float("nan")}).verdict
    assert verdict.choice == "bucket-cap=5"
    assert any("bucket-cap=5, which changes the gradients least." in s for s in verdict.sentences)
    steps = {**BASE_TIMES, "bucket-cap=5": (50.0, 0.02), "bucket-cap=10": (50.2, 0.02)}
    same = trial(steps).verdict
    assert same.choice == "bucket-cap=5"
    assert any("bucket-cap=5, which was the fastest." in said for said in same.sentences)


def test_all_candidates_as_fast_as_the_fastest_are_named() -> None:
    steps = {**BASE_TIMES, "topk:ratio=0.01": (50.0, 0.02), "int8": (50.3, 0.02)}
    steps["fp16"] = (50.2, 0.02)
    verdict = trial(steps, errors={"topk:ratio=0.01": 0.9, "int8": 0.008, "fp16": 0.1}).verdict
    assert (verdict.choice, verdict.fastest) == ("int8", "topk:ratio=0.01")
    (tied,) = (said for said in verdict.sentences if "did not differ" in said)
    assert tied.endswith(
        " did not differ measurably in speed from the fastest, topk:ratio=0.01. Of all these, int8 "
        "changes the gradients least."
    )
    assert {"fp16", "int8"} == set(tied.split(" did not")[0].split(" and "))


def test_a_compressor_with_unmeasured_error_is_not_preferred() -> None:
    nan = float("nan")
    steps = {**BASE_TIMES, "topk:ratio=0.01": (50.0, 0.02), "int8": (50.3, 0.02)}
    verdict = trial(steps, errors={"topk:ratio=0.01": nan, "int8": 0.008}).verdict
    assert (verdict.choice, verdict.fastest) == ("int8", "topk:ratio=0.01")
    assert set(verdict.equals) == {"topk:ratio=0.01", "int8"}
    nothing = trial(steps, errors={"topk:ratio=0.01": nan, "int8": nan}).verdict
    assert nothing.choice == nothing.fastest == "topk:ratio=0.01"
    tied, price = nothing.sentences[-2:]
    assert tied == (
        "int8 did not differ measurably in speed from topk:ratio=0.01, which was the fastest; "
        "errors of the gradients were not measured."
    )
    assert price.startswith("Its effect on the gradients was not measured. The effect on the loss")
    between = trial({**steps, "bucket-cap=5": (50.2, 0.02)}, errors={"topk:ratio=0.01": nan})
    assert between.verdict.choice == "bucket-cap=5"


def test_the_verdict_says_that_hierarchical_sums_gradients_in_another_order() -> None:
    nan = {"hierarchical": float("nan")}
    verdict = trial({**BASE_TIMES, "hierarchical": (50.0, QUIET)}, errors=nan).verdict
    assert verdict.sentences[-1].startswith("It sums gradients in another order:")


@pytest.mark.parametrize("label", ["no-overlap", "no-overlap+bucket-cap=5"])
def test_candidates_that_no_option_applies_are_not_recommended(label: str) -> None:
    reason = (
        "and is not recommended: no-overlap exists in trials only, for comparison, and no option "
        "applies it."
    )
    alone = trial({**BASE_TIMES, label: (60.0, QUIET)}).verdict
    assert (alone.answer, alone.choice, alone.fastest, alone.apply) == ("none", "", "", "")
    nothing, barred = alone.sentences[-2:]
    assert (
        nothing == "Every candidate of this trial is for comparison only; none can be recommended."
    )
    assert barred.startswith(f"{label} saves ")
    assert barred.endswith(reason)
    beside = trial({**BASE_TIMES, label: (60.0, QUIET), "int8": (70.0, QUIET)}).verdict
    assert (beside.answer, beside.choice, beside.fastest) == ("use", "int8", "int8")
    assert beside.equals == ("int8",)
    assert beside.sentences[-1].endswith(reason)
    slower = trial({**BASE_TIMES, label: (120.0, QUIET), "int8": (70.0, QUIET)}).verdict
    assert not any("not recommended" in said for said in slower.sentences)


def test_with_too_few_rounds_the_verdict_is_unknown() -> None:
    short = judge([], (), np.ones((3, 2)), (), RUN)
    assert short.answer == "unknown"
    assert short.sentences[0].startswith("Too short for a verdict: 3 complete rounds are needed, ")


@pytest.mark.parametrize(
    ("candidate", "setting", "what"),
    [
        (
            "topk:ratio=0.01",
            dataclasses.replace(RUN, command="python -m commprof.run --trial=a,b --nproc 4"),
            "commprof run --hook topk:ratio=0.01 --nproc 4",
        ),
        (
            "int8",
            TrialSetting(
                "commprof run --config job.yaml --nproc 2", True, ("train.py", "--lr", "1")
            ),
            "commprof run --hook int8 --config job.yaml --nproc 2",
        ),
        (
            "int8",
            TrialSetting("python -m commprof run --output=x --trial int8 --json y --seed 3", True),
            "commprof run --hook int8 --seed 3",
        ),
        (
            "int8",
            TrialSetting(
                "commprof run --trial int8 train.py --trial 3 --output 'a b'",
                True,
                ("train.py", "--trial", "3", "--output", "a b"),
            ),
            "commprof run --hook int8 train.py --trial 3 --output 'a b'",
        ),
        (
            "int8",
            TrialSetting("my-launcher --trial int8", True),
            "the same run with --hook int8 in place of --trial",
        ),
        (
            "int8",
            TrialSetting("train.py", False),
            "COMMPROF_HOOK=int8 COMMPROF_TRIAL= commprof env --output DIR -- COMMAND; "
            "or, if the script itself began the trial: "
            'commprof.attach(ddp, hook=commprof.compressors.parse("int8"))',
        ),
        ("bucket-cap=5", RUN, "commprof run --nproc 2 --bucket-cap-mb 5 train.py"),
        ("prefetch=2", RUN, "commprof run --nproc 2 --fsdp prefetch=2 train.py"),
        (
            "prefetch=2+reduce-dtype=bf16",
            TrialSetting("train.py", False),
            "COMMPROF_FSDP=prefetch=2+reduce-dtype=bf16 COMMPROF_TRIAL= commprof env --output DIR "
            "-- COMMAND; or in the script: call set_modules_to_forward_prefetch and "
            "set_modules_to_backward_prefetch on every sharded module, with a list of the modules "
            "that are gathered next in forward or in backward (2 at most); and "
            "fully_shard(..., mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))",
        ),
        (
            "int8+first-bucket=1+gradient-as-bucket-view=true",
            RUN,
            "in the script: DistributedDataParallel(model, bucket_cap_mb_list=[1, the model's own "
            "cap], gradient_as_bucket_view=True); and "
            'commprof.attach(ddp, hook=commprof.compressors.parse("int8"))',
        ),
        (
            "bucket-cap=5+gradient-as-bucket-view=true",
            RUN,
            "in the script: DistributedDataParallel(model, bucket_cap_mb=5, "
            "gradient_as_bucket_view=True)",
        ),
        (
            "int8+bucket-cap=5",
            RUN,
            "commprof run --nproc 2 --hook int8 --bucket-cap-mb 5 train.py",
        ),
        (
            "bucket-cap=5",
            TrialSetting("train.py", False),
            "COMMPROF_BUCKET_CAP_MB=5 COMMPROF_TRIAL= commprof env --output DIR -- "
            "COMMAND; or, if the script itself began the trial: "
            "DistributedDataParallel(model, bucket_cap_mb=5)",
        ),
        (
            "topk:ratio=0.01+bucket-cap=2.5",
            TrialSetting("train.py", False),
            "COMMPROF_HOOK=topk:ratio=0.01 COMMPROF_BUCKET_CAP_MB=2.5 COMMPROF_TRIAL= "
            "commprof env --output DIR -- COMMAND; or, if the script itself began the trial: "
            'commprof.attach(ddp, hook=commprof.compressors.parse("topk:ratio=0.01")); and '
            "DistributedDataParallel(model, bucket_cap_mb=2.5)",
        ),
        ("no-overlap", RUN, ""),
        ("no-overlap+bucket-cap=5", TrialSetting("train.py", False), ""),
    ],
)
def test_the_verdict_s_command_or_code_applies_the_candidate(
    candidate: str, setting: TrialSetting, what: str
) -> None:
    assert apply(parse_candidate(candidate), setting) == what
