from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.card import card
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.step.stalls import stalled
from commprof.analysis.verdict import Verdict, verdict
from commprof.analysis.world import WorldResult
from commprof.report.card import facts
from tests.support.builders.results import context, detail, parts, run_result, world


def of(ranks: int = 2, **measured: object) -> Verdict:
    found = verdict(run_result(world(ranks)), [detail(ranks, **measured)])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("measured", "part"),
    [
        ({"forward": 20, "backward": 40, "transfer": 30}, "compute"),
        ({"backward": 30, "wait": 50, "transfer": 10}, "communication"),
        # Only together are waiting and transfer larger than compute.
        ({"backward": 44, "wait": 11.2, "transfer": 40.9}, "communication"),
        ({"backward": 30, "wait": math.nan, "transfer": math.nan, "exposed": 60}, "communication"),
        ({"backward": 20, "wait": 10, "transfer": 10, "exposed": 70}, "communication"),
        ({"backward": 30, "data": 60}, "data"),
        ({"backward": 30, "optimizer": 60}, "optimizer"),
        ({"backward": 30}, "other"),
    ],
)
def test_the_largest_part_of_the_step_is_the_binding_one(
    measured: dict[str, float], part: str
) -> None:
    found = of(**measured)
    assert found.bindings[0].part == part
    assert found.headline.startswith("At 2 ranks the step is bound by ")


@pytest.mark.parametrize(
    ("capture", "device", "missing"),
    [
        ("native", {}, ""),
        ("native", {"device_collectives": 4, "device_timed": 4}, ""),
        ("python", {}, "C++ module"),
        ("native", {"device_collectives": 4, "why_none": "no driver"}, "Reason: no driver."),
        ("native", {"device_collectives": 4}, "captured into a graph"),
    ],
)
def test_communication_that_the_capture_cannot_see_is_reported_as_not_seen(
    capture: str, device: dict[str, object], missing: str
) -> None:
    seen = parts(exposed_ms=0.0)
    measured = world(2, parts=seen.unseen() if capture == "python" else seen, **device)
    result = run_result(measured, context=context(capture=capture))
    details = [detail(2, backward=60)]
    found = verdict(result, details)
    assert found is not None
    assert ("its communication was not recorded" in found.headline) == bool(missing)
    assert found.next_step.advice.startswith("Communication is not") == (not missing)
    assert missing in found.next_step.advice
    made = card(result, details, found, Path("r"))
    assert made is not None
    told = dict(facts(made))["Exposed communication"]
    assert told == ("not known: the capture saw no communication." if missing else "none.")
    assert made.following.command.endswith("check") == (capture == "python")


def test_without_times_of_the_gpu_no_bound_on_the_gain_and_no_late_rank_are_stated() -> None:
    result = run_result(world(2, device_collectives=4, parts=parts(exposed_ms=2.0)))
    details = [detail(2, backward=60, wait=1, transfer=1, hidden=5)]
    found = verdict(result, details)
    assert found is not None
    assert "its communication was not recorded" in found.headline
    text = " ".join(found.sentences)
    assert "upper bound" not in text
    assert "No single rank" not in text
    made = card(result, details, found, Path("r"))
    assert made is not None
    assert not made.lateness.nobody_late
    unknown = (
        made.communication.exposed_ms,
        made.communication.wait_ms,
        made.communication.transfer_ms,
        made.communication.hidden_ms,
    )
    assert all(map(math.isnan, unknown))


def test_exposed_time_of_the_host_is_not_reported_as_not_seen() -> None:
    """The host itself waits with TORCH_NCCL_BLOCKING_WAIT=1, and for groups on gloo."""
    result = run_result(world(2, device_collectives=4))
    found = verdict(result, [detail(2, backward=30, exposed=40, wait=math.nan, transfer=math.nan)])
    assert found is not None
    assert "bound by communication: 40.0%" in found.headline


def test_the_headline_gives_communication_with_its_parts() -> None:
    assert of(backward=44, wait=11.2, transfer=40.9, hidden=20).headline == (
        "At 2 ranks the step is bound by communication: 52.1% of the mean step of 100 ms (40.9% "
        "data transfer, 11.2% waiting for the last rank)."
    )
    unknown = of(backward=30, wait=math.nan, transfer=math.nan, exposed=60).headline
    assert unknown.endswith("bound by communication: 60.0% of the mean step of 100 ms.")
    assert "50.0% not attributed" in of(backward=20, wait=10, transfer=10, exposed=70).headline


def test_parts_that_are_largest_alternately_limit_the_step_about_equally() -> None:
    turns = np.where(np.arange(20) % 2 == 0, 60.0, 30.0)
    found = of(backward=turns, transfer=90 - turns, hidden=20)
    assert found.bindings[0].part is None
    assert found.headline == (
        "At 2 ranks the step is limited about equally by compute (forward and backward) (45.0%) "
        "and communication (45.0%)."
    )


def test_parts_whose_order_depends_on_one_step_are_not_called_equal() -> None:
    burst = np.where(np.arange(20) == 7, 700.0, 5.0)
    found = of(backward=20, transfer=burst, step=100 + burst)
    assert found.bindings[0].part is None
    assert found.headline.startswith("At 2 ranks the largest parts of the step are code outside")


def test_the_verdict_leaves_out_a_stalled_step() -> None:
    hang = np.where(np.arange(20) == 7, 25_000.0, 5.0)
    step = detail(2, backward=60, wait=hang, step=95 + hang)
    found = verdict(run_result(world(2, stalled_steps=((7, 25_095.0),))), [step])
    assert found is not None
    assert found.headline == (
        "At 2 ranks the step is bound by compute (forward and backward): 60.0% of the mean step of "
        "100 ms."
    )
    assert found.sentences[0].startswith(
        "The verdict leaves out step 7 (25.1 s), which is more than ten times as long as"
    )
    assert "communication during 5.0% of the mean step" in found.sentences[1]
    assert found.next_step.command == ""


@pytest.mark.parametrize(("steps", "hung", "left_out"), [(20, 1, 1), (60, 3, 3), (60, 4, 0)])
def test_frequent_slow_steps_do_not_count_as_stalled(steps: int, hung: int, left_out: int) -> None:
    assert stalled(np.where(np.arange(steps) < hung, 2000.0, 100.0)).sum() == left_out


def test_the_verdict_gives_exposed_time_as_the_largest_possible_gain() -> None:
    text = " ".join(of(backward=60, wait=10, transfer=20, hidden=12.5).sentences)
    assert "during 30.0% of the mean step: 10.0% for the last rank, 20.0% for the trans" in text
    assert "all else stayed equal, a step would be at most 30.0% (30 ms) shorter (upper bo" in text
    assert "12.5 ms of communication was hidden by other work" in text
    assert "No single rank stands out as the one that the others wait for." in text


def test_the_verdict_names_the_late_rank_and_its_phase() -> None:
    late = LateRank(1, 8e6, 0.9, 0.001, 9, 10, 0.1, "data", 0.8)
    found = verdict(run_result(world(2, late_rank=late)), [detail(2, wait=60)])
    assert found is not None
    text = " ".join(found.sentences)
    assert "wait for rank 1, which falls behind in the data phase: 8 ms per step" in text


def test_the_verdict_says_that_one_other_rank_waits_for_the_late_rank() -> None:
    late = LateRank(1, 20e6, 0.9, 0.001, 9, 10, 0.1, "data", 0.8, waiting_ranks=1)
    found = verdict(run_result(world(8, late_rank=late)), [detail(8, wait=60)])
    assert found is not None
    assert "one other rank spends 20% of its step waiting for it." in found.headline
    assert "One other rank waits for rank 1, which falls behind" in " ".join(found.sentences)
    assert "one other rank spends 20% of its step waiting for it." in found.next_step.advice


def test_the_verdict_names_host_pauses_of_the_late_rank() -> None:
    late = LateRank(1, 8e6, 0.9, 0.001, 9, 10, 0.1, "host pause", 0.8)
    found = verdict(run_result(world(2, late_rank=late)), [detail(2, wait=60)])
    assert found is not None
    text = " ".join(found.sentences)
    assert (
        "wait for rank 1, which falls behind because its process did not run (host pause): 8 ms per"
        in text
    )


@pytest.mark.parametrize(
    ("forward_ms", "backward", "said"), [(0.0, 30, True), (0.0, 90, True), (5.0, 30, False)]
)
def test_the_verdict_says_that_no_forward_pass_was_seen(
    forward_ms: float, backward: float, said: bool
) -> None:
    run = run_result(world(2, parts=parts(forward_ms=forward_ms)))
    found = verdict(run, [detail(2, backward=backward)])
    assert found is not None
    sentence = "No forward pass was recorded. Without DDP or FSDP, the forward pass of a model "
    assert any(one.startswith(sentence) for one in found.sentences) == said


def test_the_growth_of_the_step_is_divided_among_its_parts() -> None:
    result = run_result(world(1), world(2, samples_per_s=150.0))
    found = verdict(result, [detail(1, backward=60), detail(2, backward=85, transfer=25, step=150)])
    assert found is not None
    assert found.sentences[-1] == (
        "From 1 to 2 ranks the throughput grew by a factor of 1.50, 75% of the ideal. A step is "
        "50 ms longer than with ideal scaling: +25 ms compute, +25 ms data transfer."
    )


def test_under_strong_scaling_the_ideal_step_is_shorter() -> None:
    result = run_result(world(1), world(2, samples_per_s=100.0), context=context(scaling="strong"))
    found = verdict(result, [detail(1, backward=60), detail(2, backward=60)])
    assert found is not None
    assert found.sentences[-1].endswith("ideal scaling: +30 ms compute, +20 ms other.")


def test_the_growth_of_a_script_s_step_is_not_divided_among_parts() -> None:
    about = context()
    del about["scaling"]
    result = run_result(world(1), world(2, samples_per_s=150.0), context=about)
    found = verdict(result, [detail(1), detail(2, backward=60)])
    assert found is not None
    assert found.sentences[-1].endswith("75% of the ideal.")


TWO_CORES = context(machine={"usable_cpu_count": 2, "cpu_model": "x"})


def about(*worlds: WorldResult) -> Verdict:
    details = [detail(world.world_size, backward=60, transfer=30) for world in worlds]
    found = verdict(run_result(*worlds, context=TWO_CORES), details)
    assert found is not None
    return found


def test_the_verdict_is_about_the_largest_world_size_with_a_core_for_each_thread() -> None:
    found = about(world(1), world(2), world(4), world(8))
    assert found.world_size == 2
    assert found.headline.startswith("At 2 ranks ")
    assert found.sentences[0] == (
        "The verdict is about 2 ranks, the largest world size with a core for each thread: 4 and 8 "
        "ranks run more threads than the 2 usable cores."
    )
    assert "From 1 to 2 ranks" in found.sentences[-1]


def test_without_enough_cores_the_verdict_is_about_the_largest_world_size() -> None:
    assert about(world(1), world(4), world(8)).world_size == 8


def test_the_verdict_mentions_cores_only_if_ranks_waited_for_them() -> None:
    lacking = about(world(4, parts=parts(no_core_ms=3.0)))
    assert lacking.sentences[0] == (
        "Ranks waited for CPU cores: for 10.0% of the exposed time, they were ready to run but had "
        "no core. This figure leaves out the other parts of the step, where ranks may have waited "
        "for cores too."
    )
    asleep = about(world(4, parts=parts(no_core_ms=0.0)))
    assert "core" not in " ".join([*asleep.sentences, asleep.next_step.advice])


def test_the_card_says_of_a_failed_world_size_whether_it_has_figures() -> None:
    failures = ((2, "rank 1 failed"), (4, "did not run to its end"))
    result, details = run_result(world(2), failures=failures), [detail(2, backward=60)]
    made = card(result, details, verdict(result, details), Path("r"))
    assert made is not None
    assert made.caveats == (
        "The run failed at 2 ranks: rank 1 failed",
        "There are no figures for 4 ranks: did not run to its end",
    )


def test_there_is_no_verdict_without_figures() -> None:
    assert verdict(run_result(), []) is None
