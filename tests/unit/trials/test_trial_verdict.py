"""What a trial's figures amount to, in words: never more than they show."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from commprof.trials.candidates import parse_candidate
from commprof.trials.verdict import (
    Setting,
    apply,
    judge,
)
from tests.support.builders.trial_results import RUN, trial

QUIET = 0.005
ROLES = {"none": (100.0, QUIET), "none again": (100.2, QUIET), "noop": (40.0, QUIET)}


def test_a_clear_winner_is_recommended_with_its_interval() -> None:
    verdict = trial({**ROLES, "fp16": (70.0, QUIET), "int8": (50.0, QUIET)}).verdict
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
    assert "changes gradients by 0.01 of their length (cosine 0.9999)" in price
    assert verdict.apply == "commprof run --nproc 2 --hook int8 train.py"


def test_under_ten_percent_of_headroom_it_stops() -> None:
    steps = {**ROLES, "noop": (92.0, QUIET), "int8": (50.0, QUIET)}
    verdict = trial(steps).verdict
    assert (verdict.answer, verdict.choice, verdict.apply) == ("not-the-bottleneck", "", "")
    assert "Communication is not the bottleneck" in verdict.sentences[-1]
    assert verdict.sentences[-1].endswith("Look at backward first.")


def test_a_headroom_that_may_be_anything_says_nothing() -> None:
    verdict = trial({**ROLES, "noop": (97.0, 0.5), "int8": (50.0, QUIET)}).verdict
    assert (verdict.answer, verdict.choice) == ("unknown", "")
    assert verdict.sentences[-1].startswith("Too noisy to say")


def test_without_noop_it_goes_on() -> None:
    steps = {"none": (100.0, QUIET), "none again": (100.0, QUIET), "int8": (50.0, QUIET)}
    verdict = trial(steps).verdict
    assert verdict.answer == "use"
    assert verdict.sentences[0].startswith("The step of 100 ms is bound by")


def test_nothing_is_recommended_whose_interval_holds_zero() -> None:
    verdict = trial({**ROLES, "int8": (98.0, 0.08), "fp16": (120.0, QUIET)}).verdict
    assert (verdict.answer, verdict.choice, verdict.gain) == ("none", "", None)
    assert "none of what was tried makes the step shorter for sure" in verdict.sentences[-1]


def test_a_gain_below_what_equal_things_differ_by_is_none() -> None:
    steps = {**ROLES, "none again": (94.0, QUIET), "int8": (97.0, QUIET)}
    verdict = trial(steps).verdict
    assert verdict.answer == "none"
    assert "two runs of the same thing differed by" in verdict.sentences[-1]


def test_of_equals_the_one_that_harms_gradients_least_is_taken() -> None:
    steps = {**ROLES, "topk:ratio=0.01": (50.0, 0.02), "int8": (50.3, 0.02)}
    result = trial(steps, errors={"topk:ratio=0.01": 0.9, "int8": 0.008})
    assert result.verdict.choice == "int8"
    assert any(
        "topk:ratio=0.01 did not differ from it" in said for said in result.verdict.sentences
    )
    lossless = trial({**ROLES, "int8": (50.0, 0.02), "bucket-cap=5": (50.2, 0.02)})
    assert lossless.verdict.choice == "bucket-cap=5"
    assert lossless.verdict.sentences[-1] == (
        "It changes no result: the gradients have the same bits."
    )


def test_a_compressor_that_was_not_measured_is_no_lesser_harm() -> None:
    nan = float("nan")
    steps = {**ROLES, "topk:ratio=0.01": (50.0, 0.02), "int8": (50.3, 0.02)}
    verdict = trial(steps, errors={"topk:ratio=0.01": nan, "int8": 0.008}).verdict
    assert (verdict.choice, verdict.fastest) == ("int8", "topk:ratio=0.01")
    assert set(verdict.equals) == {"topk:ratio=0.01", "int8"}
    nothing = trial(steps, errors={"topk:ratio=0.01": nan, "int8": nan}).verdict
    assert nothing.choice == nothing.fastest == "topk:ratio=0.01"
    tied, price = nothing.sentences[-2:]
    assert tied == (
        "int8 did not differ from it measurably; topk:ratio=0.01 was the fastest, and what each "
        "does to the gradients was not measured."
    )
    assert price.startswith("What it does to the gradients was not measured. What that does")
    between = trial({**steps, "bucket-cap=5": (50.2, 0.02)}, errors={"topk:ratio=0.01": nan})
    assert between.verdict.choice == "bucket-cap=5"


def test_an_exchange_that_does_not_compress_sums_in_another_order() -> None:
    nan = {"hierarchical": float("nan")}
    verdict = trial({**ROLES, "hierarchical": (50.0, QUIET)}, errors=nan).verdict
    assert verdict.sentences[-1].startswith("It sums gradients in another order:")


@pytest.mark.parametrize("label", ["no-overlap", "no-overlap+bucket-cap=5"])
def test_what_no_option_applies_is_not_recommended(label: str) -> None:
    reason = (
        "and is not recommended: no-overlap exists in trials only, for comparison, and no option "
        "applies it."
    )
    alone = trial({**ROLES, label: (60.0, QUIET)}).verdict
    assert (alone.answer, alone.choice, alone.fastest, alone.apply) == ("none", "", "", "")
    nothing, barred = alone.sentences[-2:]
    assert nothing == "No candidate was tried that can be recommended."
    assert barred.startswith(f"{label} saves ")
    assert barred.endswith(reason)
    beside = trial({**ROLES, label: (60.0, QUIET), "int8": (70.0, QUIET)}).verdict
    assert (beside.answer, beside.choice, beside.fastest) == ("use", "int8", "int8")
    assert beside.equals == ("int8",)
    assert beside.sentences[-1].endswith(reason)
    slower = trial({**ROLES, label: (120.0, QUIET), "int8": (70.0, QUIET)}).verdict
    assert not any("not recommended" in said for said in slower.sentences)


def test_too_few_rounds_say_nothing() -> None:
    short = judge([], (), np.ones((3, 2)), (), RUN)
    assert short.answer == "unknown"
    assert short.sentences[0].startswith("Too short to say anything: 2 complete rounds")


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
            Setting("commprof run --config job.yaml --nproc 2", True, ("train.py", "--lr", "1")),
            "commprof run --hook int8 --config job.yaml --nproc 2",
        ),
        (
            "int8",
            Setting("python -m commprof run --output=x --trial int8 --json y --seed 3", True),
            "commprof run --hook int8 --seed 3",
        ),
        (
            "int8",
            Setting(
                "commprof run --trial int8 train.py --trial 3 --output 'a b'",
                True,
                ("train.py", "--trial", "3", "--output", "a b"),
            ),
            "commprof run --hook int8 train.py --trial 3 --output 'a b'",
        ),
        (
            "int8",
            Setting("my-launcher --trial int8", True),
            "the same run with --hook int8 in the place of --trial",
        ),
        (
            "int8",
            Setting("train.py", False),
            "COMMPROF_HOOK=int8 COMMPROF_TRIAL= commprof env --output DIR -- COMMAND; "
            "or, where the script itself began the trial: "
            'commprof.attach(ddp, hook=commprof.compressors.parse("int8"))',
        ),
        ("bucket-cap=5", RUN, "commprof run --nproc 2 --bucket-cap-mb 5 train.py"),
        (
            "int8+bucket-cap=5",
            RUN,
            "commprof run --nproc 2 --hook int8 --bucket-cap-mb 5 train.py",
        ),
        (
            "bucket-cap=5",
            Setting("train.py", False),
            "COMMPROF_BUCKET_CAP_MB=5 COMMPROF_TRIAL= commprof env --output DIR -- "
            "COMMAND; or, where the script itself began the trial: "
            "DistributedDataParallel(model, bucket_cap_mb=5)",
        ),
        (
            "topk:ratio=0.01+bucket-cap=2.5",
            Setting("train.py", False),
            "COMMPROF_HOOK=topk:ratio=0.01 COMMPROF_BUCKET_CAP_MB=2.5 COMMPROF_TRIAL= "
            "commprof env --output DIR -- COMMAND; or, where the script itself began the trial: "
            'commprof.attach(ddp, hook=commprof.compressors.parse("topk:ratio=0.01")); and '
            "DistributedDataParallel(model, bucket_cap_mb=2.5)",
        ),
        ("no-overlap", RUN, ""),
        ("no-overlap+bucket-cap=5", Setting("train.py", False), ""),
    ],
)
def test_what_to_do_is_said_in_one_line(candidate: str, setting: Setting, what: str) -> None:
    assert apply(parse_candidate(candidate), setting) == what
