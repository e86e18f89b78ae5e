"""Each cause of the catalogue is named where the records show it, with what its fix wins.

The healthy twin of each job, with the fix applied, must stay silent.
"""

from __future__ import annotations

import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, saved

MB = 1_000_000


def trained(script: Script, ms: float = 10.0) -> None:
    """A usual pass: 10 ms of forward, 20 of backward, 2 ms of gradients, an update."""
    script.forward(ms)
    script.backward(2 * ms, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_a_usual_job_has_no_cause() -> None:
    assert causes_of(lambda script, step: trained(script)) == {}


def buffers(script: Script, step: int) -> None:
    """4 ms of broadcasts before 10 ms of forward, in steps of 37 ms."""
    script.forward(10.0, lambda: script.call("broadcast", 2 * MB, 4.0))
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_buffers_in_every_forward_are_named_with_their_bytes_and_time() -> None:
    found = causes_of(buffers)
    assert list(found) == ["ddp-buffers"]
    cause = found["ddp-buffers"]
    assert "2 MB in 1 broadcast and 4 ms per step" in cause.sentence
    assert saved(cause) == pytest.approx(4 / 37, abs=1e-3)
    assert "broadcast_buffers=False" in cause.fix


@pytest.mark.parametrize(
    ("log", "models"), [({"broadcast_buffers": 0}, 1), ({}, 0), ({"broadcast_buffers": None}, 1)]
)
def test_broadcasts_of_others_are_no_buffers_of_ddp(log: dict[str, int], models: int) -> None:
    assert "ddp-buffers" not in causes_of(buffers, log=log, models=models)


def test_buffers_that_take_little_are_not_named() -> None:
    def body(script: Script, step: int) -> None:
        script.forward(50.0, lambda: script.call("broadcast", 256, 0.5))
        script.backward(20.0, {4 * MB: 2.0})
        script.work(1.0, Phase.OPTIMIZER)

    assert causes_of(body) == {}


def accumulated(synced: set[int], passes: int = 4):  # type: ignore[no-untyped-def]
    """Steps of passes of 9 ms, those in ``synced`` with an exchange of 3 ms, and 1 ms of update."""

    def body(script: Script, step: int) -> None:
        for micro in range(passes):
            script.forward(3.0)
            script.backward(6.0, {8 * MB: 3.0} if micro in synced else None)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def test_an_exchange_of_every_micro_batch_is_named() -> None:
    found = causes_of(accumulated({0, 1, 2, 3}))
    assert list(found) == ["ddp-every-pass"]
    cause = found["ddp-every-pass"]
    assert "in all 4 backward passes before an update" in cause.sentence
    assert "24 MB per step, are needless" in cause.sentence
    # Three of four exchanges of 3 ms go, in a step of 49 ms.
    assert saved(cause) == pytest.approx(9 / 49, abs=1e-3)


def test_an_exchange_of_some_micro_batches_and_the_last_is_named() -> None:
    cause = causes_of(accumulated({1, 3}))["ddp-every-pass"]
    assert "in 2 of the 4 backward passes" in cause.sentence
    assert saved(cause) == pytest.approx(3 / 43, abs=1e-3)


@pytest.mark.parametrize("synced", [{0}, {1}, {0, 1, 2}])
def test_if_the_last_micro_batch_is_not_exchanged_the_weights_drift(synced: set[int]) -> None:
    found = causes_of(accumulated(synced))
    assert next(iter(found)) == "ddp-wrong-pass"
    assert found["ddp-wrong-pass"].is_wrong
    assert found["ddp-wrong-pass"].saving is None


def test_the_last_micro_batch_alone_is_right() -> None:
    assert causes_of(accumulated({3})) == {}


def test_a_pass_of_each_of_two_models_is_no_accumulation() -> None:
    assert causes_of(accumulated({0, 1}, passes=2), models=2) == {}


def metrics(count: int, size: int = 4, ms: float = 1.0):  # type: ignore[no-untyped-def]
    """Steps of 33 ms, and ``count`` calls that are 0.5 ms apart."""

    def body(script: Script, step: int) -> None:
        trained(script)
        for _ in range(count):
            script.call(size=size, ms=ms)
            script.work(0.5)

    return body


def test_scalars_one_by_one_are_named() -> None:
    found = causes_of(metrics(8))
    assert list(found) == ["scalars-one-by-one"]
    cause = found["scalars-one-by-one"]
    assert cause.sentence.startswith("8 all_reduce calls per step of 4 bytes on average")
    # Of steps of 33 + 8 x 1.5 ms, seven calls go with the work before each.
    assert saved(cause) == pytest.approx(7 * 1.5 / 45, abs=1e-3)


def test_the_line_of_the_calls_is_named_if_stacks_of_some_were_recorded() -> None:
    def body(script: Script, step: int) -> None:
        metrics(8)(script, step)
        if step == 0:
            script.rank.stacks[1] = ("/usr/site-packages/torch/c10d.py:9 f", "/job/train.py:40 log")
            script.rank.stack(op_id=2, number=1)

    cause = causes_of(body)["scalars-one-by-one"]
    assert cause.line == "/job/train.py:40 log"
    assert "at /job/train.py:40 log" in cause.sentence


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_scalars_are_usual(count: int) -> None:
    assert causes_of(metrics(count)) == {}


def test_scalars_in_each_micro_batch_are_no_burst() -> None:
    def body(script: Script, step: int) -> None:
        for _ in range(4):
            script.forward(10.0)
            script.call(ms=0.2)
            script.backward(20.0)
        script.backward(1.0, {MB: 1.0})
        script.work(1.0, Phase.OPTIMIZER)

    assert "scalars-one-by-one" not in causes_of(body)


def objects(script: Script, step: int) -> None:
    """33 ms of training, then the sizes (1 ms) and the bytes (2 ms) of a pickled object."""
    trained(script)
    script.call("all_gather", 8, 1.0, "Long")
    script.work(0.5)
    script.call("all_gather", 4096, 2.0, "Byte")
    script.work(0.5)


def test_pickled_objects_are_named() -> None:
    found = causes_of(objects)
    assert list(found) == ["pickled-objects"]
    cause = found["pickled-objects"]
    assert "(all_gather_object)" in cause.sentence
    # One call of a tensor stays: of 37 ms, 0.5 ms of work and the 2 ms of the bytes go.
    assert saved(cause) == pytest.approx(2.5 / 37, abs=1e-3)


def test_bytes_without_sizes_are_no_objects() -> None:
    def body(script: Script, step: int) -> None:
        trained(script)
        script.call("all_gather", 4096, 3.0, "Byte")

    assert causes_of(body) == {}


def test_objects_gathered_now_and_then_are_not_named() -> None:
    assert causes_of(lambda s, step: objects(s, step) if step % 5 == 4 else trained(s)) == {}
