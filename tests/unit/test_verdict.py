"""What a step is bound by, in words: each part in turn, and nothing where it cannot be said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from commprof.analysis.stragglers import LateRank
from commprof.analysis.verdict import Verdict, verdict
from tests.support.details import detail
from tests.support.results import context, parts, run_result, world


def of(ranks: int = 2, **measured: object) -> Verdict:
    found = verdict(run_result(world(ranks)), [detail(ranks, **measured)])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("measured", "part"),
    [
        ({"forward": 20, "backward": 40, "wire": 30}, "compute"),
        ({"backward": 30, "wait": 50, "wire": 10}, "waiting"),
        ({"backward": 30, "wait": 10, "wire": 50}, "wire"),
        ({"backward": 30, "wait": math.nan, "wire": math.nan, "exposed": 60}, "communication"),
        ({"backward": 20, "wait": 10, "wire": 10, "exposed": 70}, "unsplit"),
        ({"backward": 30, "data": 60}, "data"),
        ({"backward": 30, "optimizer": 60}, "optimizer"),
        ({"backward": 30}, "other"),
    ],
)
def test_the_largest_part_binds(measured: dict[str, float], part: str) -> None:
    found = of(**measured)
    assert found.bindings[0].part == part
    assert found.headline.startswith("At 2 ranks the step is bound by ")


def test_parts_that_take_turns_are_not_told_apart() -> None:
    turns = np.where(np.arange(20) % 2 == 0, 60.0, 30.0)
    found = of(backward=turns, wire=90 - turns)
    assert found.bindings[0].part is None
    assert "do not tell apart" in found.headline


def test_exposed_time_is_named_as_the_ceiling() -> None:
    text = " ".join(of(backward=60, wait=10, wire=20).sentences)
    # From the world's own figures: 30 ms of 100, 10 waiting and 20 on the wire, 12.5 hidden.
    assert (
        "in 30.0% of the mean step: 10.0% waiting for the last rank and 20.0% on the wire" in text
    )
    assert "12.5 ms of communication ran beside other work" in text
    assert "No single rank stands out as the one that the others wait for." in text


def test_the_late_rank_is_named() -> None:
    late = LateRank(1, 8e6, 0.9, 0.001, 9, 10, 0.1, "data", 0.8)
    found = verdict(run_result(world(2, late_rank=late)), [detail(2, wait=60)])
    assert found is not None
    text = " ".join(found.sentences)
    assert "wait for rank 1, where its data phase falls behind: 8 ms per step" in text


def test_a_rank_that_did_not_run_is_named_so() -> None:
    late = LateRank(1, 8e6, 0.9, 0.001, 9, 10, 0.1, "host pause", 0.8)
    found = verdict(run_result(world(2, late_rank=late)), [detail(2, wait=60)])
    assert found is not None
    text = " ".join(found.sentences)
    assert "wait for rank 1 because its process did not run (host pause): 8 ms per step" in text


def test_the_growth_of_the_step_is_shared_out() -> None:
    slow = parts(step_ms=150.0, backward_ms=65.0, exposed_ms=55.0, wire_ms=45.0)
    result = run_result(world(1), world(2, parts=slow, samples_per_s=150.0))
    found = verdict(result, [detail(1), detail(2, backward=60)])
    assert found is not None
    # 50 ms more: backward 25, wire 25.
    assert found.sentences[-1] == (
        "From 1 to 2 ranks the throughput grew 1.50 times, 75% of the ideal. Of the 50 ms that a "
        "step takes longer than ideal: wire 50%, compute 50%."
    )


def test_under_strong_scaling_the_ideal_step_is_shorter() -> None:
    half = parts(step_ms=100.0)
    result = run_result(
        world(1), world(2, parts=half, samples_per_s=100.0), context=context(scaling="strong")
    )
    found = verdict(result, [detail(1), detail(2, backward=60)])
    assert found is not None
    assert "Of the 50 ms that a step takes longer than ideal: compute 60%" in found.sentences[-1]


def test_a_script_s_growth_is_not_shared_out() -> None:
    about = context()
    del about["scaling"]
    result = run_result(world(1), world(2, samples_per_s=150.0), context=about)
    found = verdict(result, [detail(1), detail(2, backward=60)])
    assert found is not None
    assert found.sentences[-1].endswith("75% of the ideal.")


def test_ranks_that_share_cores_are_told_of() -> None:
    shared = context(machine={"usable_cpu_count": 2, "cpu_model": "x"})
    found = verdict(run_result(world(4), context=shared), [detail(4, backward=90)])
    assert found is not None
    assert found.sentences[0].startswith("4 ranks shared 2 cores")


def test_nothing_is_said_without_figures() -> None:
    assert verdict(run_result(), []) is None
