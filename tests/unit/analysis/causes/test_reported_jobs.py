from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, saved

MB = 1_000_000


def cached(synced: tuple[int, ...], script: Script, step: int) -> None:
    """A cached loss runs four inner passes in a hook of one backward pass."""
    script.forward(10.0)
    begin = script._now
    for micro in range(4):
        script.now_ms += 5.0
        task = script.passes
        script.passes += 1
        if micro in synced:
            issue = script._now
            script.now_ms += 3.0
            script.rank.collective(10 * step + micro, issue, script._now, 8 * MB, task, dtype=1)
            script.rank.finalize(issue, script._now, 0, graph_task=task)
    script.rank.phase(Phase.BACKWARD, begin, script._now)
    script.work(1.0, Phase.OPTIMIZER)


def test_passes_within_a_hook_of_the_loss_count_as_micro_batches() -> None:
    found = causes_of(partial(cached, (0, 1, 2, 3)))
    assert list(found) == ["ddp-every-pass"]
    assert "in all 4 backward passes before an update" in found["ddp-every-pass"].sentence
    # The fix removes three of four exchanges of 3 ms from a step of 43 ms.
    assert saved(found["ddp-every-pass"]) == pytest.approx(9 / 43, abs=1e-3)


def test_an_exchange_of_the_last_pass_within_a_hook_is_right() -> None:
    assert causes_of(partial(cached, (3,))) == {}


def loss(
    count: int, size: int, work_ms: float, in_backward: bool, script: Script, step: int
) -> None:
    def reduced() -> None:
        script.now_ms += work_ms
        script.call(size=size)

    begin = script._now
    script.now_ms += 10.0
    for _ in range(count):
        reduced()
    script.rank.phase(Phase.FORWARD, begin, script._now)
    if in_backward:
        begin = script._now
        for _ in range(count):
            script.now_ms += work_ms
            script.call(size=size, graph_task=script.passes)
        script.rank.phase(Phase.BACKWARD, begin, script._now)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_numbers_that_a_loss_reduces_in_forward_can_be_joined() -> None:
    found = causes_of(partial(loss, 6, 4, 0.1, False))
    assert list(found) == ["scalars-one-by-one"]
    assert "6 all_reduce calls per step (4 bytes" in found["scalars-one-by-one"].sentence
    # The fix removes five calls of 1 ms, each with 0.1 ms of work, from a step of 39.6 ms.
    assert saved(found["scalars-one-by-one"]) == pytest.approx(5.5 / 39.6, abs=1e-3)


@pytest.mark.parametrize(
    ("count", "size", "work_ms", "in_backward", "named"),
    [
        (2, 4, 0.1, False, set()),
        (6, 4, 3.0, False, {"statistics-each-layer"}),  # layers compute between the calls
        (6, 12, 0.1, True, {"statistics-each-layer"}),  # statistics have gradients
        # Statistics of three channels have 28 bytes.
        (6, 28, 0.1, False, {"statistics-each-layer"}),
    ],
)
def test_calls_of_layers_in_forward_are_no_scalars_of_a_loss(
    count: int, size: int, work_ms: float, in_backward: bool, named: set[str]
) -> None:
    assert set(causes_of(partial(loss, count, size, work_ms, in_backward))) == named


def layers(work_ms: float, script: Script, step: int) -> None:
    begin = script._now
    for _ in range(12):
        script.now_ms += work_ms
        script.call(size=4)
    script.rank.phase(Phase.FORWARD, begin, script._now)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


@pytest.mark.parametrize("work_ms", [0.3, 0.8, 1.5])
def test_numbers_of_fast_layers_cannot_be_joined(work_ms: float) -> None:
    """Each layer needs the number of the layer before."""
    assert list(causes_of(partial(layers, work_ms))) == ["statistics-each-layer"]


def metrics(states: int, script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)
    for _ in range(states):
        script.call("barrier", 0)
        script.call("all_gather", 8, dtype="Long")
        script.call("all_gather", 4)


def test_barriers_before_the_states_of_a_metric_belong_to_them() -> None:
    found = causes_of(partial(metrics, 2))
    assert next(iter(found)) == "scalars-one-by-one"
    cause = found["scalars-one-by-one"]
    assert "4 all_gather calls per step" in cause.sentence
    # The fix removes three of four gathers and both barriers, 1 ms each, from a step of 39 ms.
    assert saved(cause) == pytest.approx(5 / 39, abs=1e-3)
    assert saved(found["barrier-each-step"]) == pytest.approx(2 / 39, abs=1e-3)


def test_a_single_state_of_a_metric_is_not_joined_with_anything() -> None:
    assert causes_of(partial(metrics, 1)) == {}


def bound(no_core_ms: float, cpus: tuple[str, str], count: int, script: Script, step: int) -> None:
    machine: dict[str, Any] = script.rank.metadata["machine"]
    machine |= {"usable_cpus": [cpus[script.rank.rank]], "usable_cpu_count": 1, "cpu_count": count}
    begin = script._now
    script.forward(10.0)
    script.rank.no_core(begin, begin + 10_000_000, round(no_core_ms * 1e6))
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_ranks_on_the_same_core_of_a_larger_host_are_told() -> None:
    found = causes_of(partial(bound, 6.0, ("3", "3"), 8))
    assert list(found) == ["same-core"]
    assert "2 ranks of a host are bound to core 3, although the host has 8 cores" in (
        found["same-core"].sentence
    )
    assert found["same-core"].share == pytest.approx(6 / 33, abs=0.01)


@pytest.mark.parametrize(
    ("no_core_ms", "cpus", "count"),
    [(6.0, ("0", "1"), 8), (0.5, ("3", "3"), 8), (6.0, ("0", "0"), 1)],
)
def test_ranks_with_cores_of_their_own_or_without_others_are_usual(
    no_core_ms: float, cpus: tuple[str, str], count: int
) -> None:
    assert "same-core" not in causes_of(partial(bound, no_core_ms, cpus, count))


def varied(spread_ms: float, script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)
    for place in range(8):
        size = MB // 10 * (1 + place % 2)
        drawn = np.random.default_rng([step, place]).lognormal(0.0, 1.0)
        script.call(size=size, ms=0.4 + size / MB + spread_ms * drawn)


def test_the_time_of_a_joined_call_is_said_if_the_calls_tell_it() -> None:
    steady = causes_of(partial(varied, 0.01), steps=41)["tensors-one-by-one"]
    # The fix removes seven latencies of 0.4 ms each from a step of about 37.5 ms.
    assert saved(steady) == pytest.approx(2.8 / 37.5, abs=5e-3)
    unsteady = causes_of(partial(varied, 2.0), steps=41)["tensors-one-by-one"]
    assert unsteady.saving is None
    assert unsteady.share > 0.3


def generated(calls: int, token_ms: float, size: int, script: Script, step: int) -> None:
    for _ in range(calls):
        script.work(token_ms)
        script.call(size=size, ms=0.5)
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


@pytest.mark.parametrize(("token_ms", "size"), [(1.5, 4), (0.6, 4), (1.5, 40_000), (20.0, 4)])
def test_calls_after_each_piece_of_work_cannot_be_joined(token_ms: float, size: int) -> None:
    """The next token needs the flag that says whether any rank goes on."""
    assert causes_of(partial(generated, 12, token_ms, size)) == {}


@pytest.mark.parametrize(
    ("size", "named"), [(4, "scalars-one-by-one"), (40_000, "tensors-one-by-")]
)
def test_calls_with_little_work_between_them_are_named(size: int, named: str) -> None:
    found = causes_of(partial(generated, 12, 0.4, size))
    assert [name.startswith(named) for name in found] == [True]


def test_other_calls_do_not_hide_the_numbers_that_can_be_joined() -> None:
    def body(script: Script, step: int) -> None:
        generated(12, 3.0, 4, script, step)
        for _ in range(6):
            script.call(size=4, ms=0.5)
            script.work(0.1)

    found = causes_of(body)
    assert list(found) == ["scalars-one-by-one"]
    assert "6 all_reduce calls per step" in found["scalars-one-by-one"].sentence
    # The fix removes five calls of 0.5 ms, each with 0.1 ms of work, from a step of 78.6 ms.
    assert saved(found["scalars-one-by-one"]) == pytest.approx(5 * 0.6 / 78.6, abs=1e-3)


def test_other_work_between_two_of_the_numbers_is_not_won() -> None:
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0, {4 * MB: 2.0})
        script.work(1.0, Phase.OPTIMIZER)
        for place in range(12):
            script.work(5.0 if place == 6 else 0.1)
            script.call(size=4, ms=0.5)

    cause = causes_of(body)["scalars-one-by-one"]
    # The fix removes 11 calls of 0.5 ms and 10 times 0.1 ms of work from a step of 45.1 ms.
    assert saved(cause) == pytest.approx((11 * 0.5 + 10 * 0.1) / 45.1, abs=1e-3)


def test_a_longer_series_that_is_no_cause_hides_none() -> None:
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0)
        for place in range(6):
            script.call("reduce", size=40_000 + 4 * place, ms=1.0)
        script.work(1.0, Phase.OPTIMIZER)
        for _ in range(10):
            script.call("broadcast", size=8 * MB, ms=1.0)

    cause = causes_of(body, models=0)["tensors-one-by-one"]
    assert "6 reduce calls per step" in cause.sentence
    assert cause.share == pytest.approx(5 / 47, abs=1e-3)


def owned(op: str, script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0)
    for place in range(10):
        script.call(op, size=40_000 + 4 * place, ms=1.0, aux=place % 2)
    script.work(1.0, Phase.OPTIMIZER)


@pytest.mark.parametrize("op", ["reduce", "broadcast"])
def test_tensors_whose_roots_take_turns_are_joined_by_root(op: str) -> None:
    cause = causes_of(partial(owned, op), models=0)["tensors-one-by-one"]
    assert f"10 {op} calls per step" in cause.sentence
    assert "of one type and one root" in cause.fix
    assert "YOUR_ROOT" in cause.fix
    # Of ten calls of 1 ms, one call for each of the two roots remains.
    assert cause.share == pytest.approx(8 / 41, abs=1e-3)


def test_a_series_of_one_operation_is_told_beside_another() -> None:
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0)
        for place in range(6):
            script.call("reduce", size=40_000 + 4 * place, ms=1.0)
        script.work(1.0, Phase.OPTIMIZER)
        for place in range(10):
            script.call("broadcast", size=40_000 + 4 * place, ms=1.0)

    cause = causes_of(body, models=0)["tensors-one-by-one"]
    assert "10 broadcast calls per step" in cause.sentence
    assert cause.share == pytest.approx(9 / 47, abs=1e-3)
