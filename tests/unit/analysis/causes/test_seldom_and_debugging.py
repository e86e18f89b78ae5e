from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, saved

MB = 1 << 20
STEPS = 31


def averaging(
    every: int, number: int = 1, size: int = 4, seldom: bool = False
) -> Callable[[Script, int], None]:
    """Every ``every``-th step averages weights; with ``seldom``, no other step has small calls."""

    def body(script: Script, step: int) -> None:
        averages = step % every == every - 1
        script.forward(10.0)
        script.backward(20.0)
        script.work(1.0, Phase.OPTIMIZER)
        for _ in range(number if averages or not seldom else 0):
            script.call(size=size, ms=2.0)
        if averages:
            script.call(size=16 * MB, ms=5.0)

    return body


def named(body: Callable[[Script, int], None], **options: Any) -> dict[str, Any]:
    return causes_of(body, steps=STEPS, models=0, **options)


def test_a_number_in_every_step_of_ranks_that_train_apart_is_named() -> None:
    found = named(averaging(every=10))
    cause = found["scalar-each-step"]
    assert "In 27 of 30 steps, the ranks exchange only numbers" in cause.sentence
    assert "in 1 all_reduce call per step" in cause.sentence
    # The fix removes 27 calls of 2 ms from 30 steps of 33 ms, three of which average for 5 ms.
    assert saved(cause) == pytest.approx(27 * 2 / (30 * 33 + 3 * 5), abs=1e-3)


@pytest.mark.parametrize(
    "body",
    [
        averaging(every=2),
        averaging(every=10, seldom=True),
        averaging(every=10, size=1 << 20),
        averaging(every=1000),  # the ranks exchange only numbers, so they do not train together
    ],
)
def test_other_exchanges_are_not_numbers_between_averages(
    body: Callable[[Script, int], None],
) -> None:
    assert "scalar-each-step" not in named(body)


def test_a_number_beside_the_gradients_of_each_step_is_not_named() -> None:
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0, {4 * MB: 2.0})
        script.work(1.0, Phase.OPTIMIZER)
        script.call(size=4, ms=2.0)
        if step % 10 == 9:
            script.call(size=16 * MB, ms=5.0)

    assert "scalar-each-step" not in causes_of(body, steps=STEPS)


@pytest.mark.parametrize("every", [4, 8])
def test_a_number_of_each_micro_batch_of_ddp_s_accumulation_is_not_named(every: int) -> None:
    def body(script: Script, step: int) -> None:
        last = step % every == every - 1
        script.call(size=4, ms=2.0)
        script.forward(10.0)
        script.backward(20.0, {4 * MB: 2.0} if last else None)
        if last:
            script.work(1.0, Phase.OPTIMIZER)

    assert "scalar-each-step" not in causes_of(body, steps=STEPS)


def debugged(ranks: set[int], until: int = 99) -> Callable[[Script, int], None]:
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        begin_ms = script.now_ms
        script.backward(20.0, {4 * MB: 2.0})
        if script.rank.rank in ranks and step < until:
            script.note("anomaly_backwards", begin_ms)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def test_anomaly_detection_that_is_left_on_is_named() -> None:
    found = causes_of(debugged({0, 1}))
    assert list(found) == ["anomaly-mode"]
    assert "anomaly detection is left on: in each forward" in found["anomaly-mode"].sentence
    assert not found["anomaly-mode"].wins


def test_anomaly_detection_on_one_rank_is_named_with_the_number_of_ranks() -> None:
    sentence = causes_of(debugged({1}))["anomaly-mode"].sentence
    assert "on 1 of 2 ranks" in sentence
    assert "is left on, on 1 of 2 ranks only: " in sentence


def test_what_anomaly_detection_does_is_not_said_of_passes_that_may_run_without_it() -> None:
    """Capture sees only that backward runs in anomaly mode."""
    cause = causes_of(debugged({0, 1}))["anomaly-mode"]
    assert "in each forward pass in this mode" in cause.sentence
    assert "unless check_nan=False says otherwise" in cause.sentence
    assert "with torch.autograd.detect_anomaly():" in cause.fix


@pytest.mark.parametrize("body", [debugged(set()), debugged({0, 1}, until=4)])
def test_anomaly_detection_that_is_off_or_on_for_few_steps_is_right(
    body: Callable[[Script, int], None],
) -> None:
    assert causes_of(body) == {}


def test_the_line_that_turns_anomaly_detection_on_is_named_and_deleted(tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text("import torch\ntorch.autograd.set_detect_anomaly(True)\n")
    os.utime(train, (0, 0))  # the script has not changed since the run
    cause = causes_of(debugged({0, 1}), script_path=str(train))["anomaly-mode"]
    assert "set at train.py:2, is left on" in cause.sentence
    assert cause.fix == "# delete train.py:2"
