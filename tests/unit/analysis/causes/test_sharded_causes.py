from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, saved

MB = 1_000_000

Body = Callable[[Script, int], None]


def passes(*sizes: int, ms: float = 5.0, again: bool = True, reduced: tuple[bool, ...]) -> Body:
    """A step has a pass for each entry of ``reduced``, which says whether the pass reduces."""

    def body(script: Script, step: int) -> None:
        for is_reduced in reduced:
            script.sharded(sizes, ms, again, is_reduced)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def shards(size: int) -> dict[str, object]:
    none = {"ddp_bytes": 0, "ignored_bytes": 0, "other_libraries": []}
    return {"parameter_bytes": size, "sharded": True, **none}


def test_units_whose_calls_are_short_beside_compute_are_usual() -> None:
    body = passes(8 * MB, 8 * MB, 8 * MB, ms=20.0, reduced=(True,))
    assert causes_of(body, models=0, trained=shards(12 * MB)) == {}


def test_one_unit_for_the_whole_model_is_named() -> None:
    found = causes_of(passes(24 * MB, again=False, reduced=(True,)), models=0)
    assert list(found) == ["fsdp-one-unit"]
    cause = found["fsdp-one-unit"]
    assert "One call gathers all 24 MB" in cause.sentence
    # A step has two calls of 1 ms, 15 ms of compute, and an update of 1 ms.
    assert cause.share == pytest.approx(2 / 18, abs=1e-3)


def test_one_unit_of_a_tiny_model_is_usual() -> None:
    assert causes_of(passes(50_000, again=False, reduced=(True,)), models=0) == {}


def test_units_of_a_few_kilobytes_are_named() -> None:
    found = causes_of(passes(*[40_000] * 12, ms=1.0, reduced=(True,)), models=0)
    assert list(found) == ["fsdp-small-units"]
    sentence = found["fsdp-small-units"].sentence
    assert "12 units of 40 kB on average. The step waits 36 ms for 36 collectives" in sentence


def test_a_reduction_of_every_micro_batch_is_named() -> None:
    body = passes(8 * MB, 8 * MB, again=False, ms=4.0, reduced=(True, True, True))
    found = causes_of(body, models=0)
    assert list(found) == ["fsdp-every-pass"]
    cause = found["fsdp-every-pass"]
    assert "in 3 of the 3 backward passes" in cause.sentence
    # The fix removes four reductions of 1 ms from three passes of 28 ms and an update of 1 ms.
    assert saved(cause) == pytest.approx(4 / 85, abs=1e-3)


LINE = ("/job/train.py:20 train",)


def micro_batches(
    stacks: tuple[tuple[str, ...], ...],
    between: tuple[Phase, ...] = (),
    kept: bool = False,
    memory: int = 8000 * MB,
) -> Body:
    """Only the last pass of a step reduces; with ``kept``, only the first pass gathers."""

    def body(script: Script, step: int) -> None:
        script.rank.metadata["machine"]["memory_bytes"] = memory
        for number, stack in enumerate(stacks):
            last = number == len(stacks) - 1
            options = {"again": False, "anew": number == 0 or not kept, "stack": stack}
            script.sharded([8 * MB, 8 * MB], 1.0, reduce=last, **options)
            for phase in between if not last else ():
                script.work(1.0, phase)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def test_a_model_that_each_micro_batch_gathers_is_named() -> None:
    found = causes_of(micro_batches((LINE,) * 4), models=0)
    assert list(found) == ["fsdp-gathers-each-pass"]
    cause = found["fsdp-gathers-each-pass"]
    assert "in each of the 4 micro batches of an update" in cause.sentence
    assert "keep the whole model, 16 MB per rank" in cause.sentence
    assert "set_reshard_after_backward(last)" in cause.fix
    # The fix removes six gathers of 1 ms from a step of 4 x 8 + 2 + 1 = 35 ms.
    assert cause.share == pytest.approx(6 / 35, abs=1e-3)
    assert saved(cause) == pytest.approx(6 / 35, abs=1e-3)


@pytest.mark.parametrize(
    "body",
    [
        micro_batches((LINE,)),
        micro_batches((LINE,) * 4, kept=True),
        micro_batches((LINE,) * 4, memory=600 * MB),
        micro_batches((LINE, ("/job/train.py:24 train",))),
        micro_batches(((), (), ())),
        micro_batches((LINE,) * 4, between=(Phase.OPTIMIZER,)),
        # A frozen teacher runs between the passes.
        micro_batches((LINE,) * 4, between=(Phase.FORWARD,)),
    ],
    ids=["one pass", "kept", "memory", "two models", "no stacks", "updates", "teacher"],
)
def test_models_that_must_be_gathered_anew_are_usual(body: Body) -> None:
    assert "fsdp-gathers-each-pass" not in causes_of(body, models=0)


def reduced_by(stacks: tuple[tuple[str, ...], ...]) -> Body:
    def body(script: Script, step: int) -> None:
        for stack in stacks:
            script.sharded([8 * MB, 8 * MB], 4.0, again=False, stack=stack)
        script.work(1.0, Phase.OPTIMIZER)

    return body


@pytest.mark.parametrize(
    ("stacks", "is_named"),
    [
        ((LINE, LINE), True),
        (((), ()), True),
        ((LINE, ("/job/train.py:24 train",)), False),
        (
            (
                ("/job/model.py:5 loss", "/job/train.py:9 f"),
                ("/job/model.py:5 loss", "/job/b.py:3 f"),
            ),
            False,
        ),
    ],
    ids=["micro batches", "no stacks", "actor and critic", "by one function"],
)
def test_passes_of_two_models_each_reduce_their_own(
    stacks: tuple[tuple[str, ...], ...], is_named: bool
) -> None:
    """With one optimizer for two models, each model still needs its own reduction."""
    assert ("fsdp-every-pass" in causes_of(reduced_by(stacks), models=0)) == is_named


def test_two_optimizers_in_turn_are_no_accumulation() -> None:
    def body(script: Script, step: int) -> None:
        micro_batches((LINE, LINE))(script, step)
        script.work(1.0, Phase.OPTIMIZER)

    assert causes_of(body, models=0) == {}


def test_fsdp1_keeps_its_model_by_other_settings() -> None:
    trained = shards(8 * MB) | {"flat": True}
    cause = causes_of(micro_batches((LINE,) * 4), models=0, trained=trained)
    fix = cause["fsdp-gathers-each-pass"].fix
    assert "SHARD_GRAD_OP" in fix
    assert "YOUR_MODEL.no_sync()" in fix


OTHERS = [
    passes(24 * MB, again=False, reduced=(True,)),
    passes(*[40_000] * 12, ms=1.0, reduced=(True,)),
    passes(8 * MB, 8 * MB, again=False, ms=4.0, reduced=(True, True, True)),
    passes(8 * MB, 8 * MB, 8 * MB, ms=1.0, reduced=(True,)),
]


@pytest.mark.parametrize("body", OTHERS)
def test_nobody_is_told_of_fsdp_whose_script_shards_without_it(body: Body) -> None:
    """DeepSpeed, or hooks of the script, shard the parameters."""
    assert causes_of(body, models=0, trained=shards(24 * MB) | {"sharded": False}) == {}


FLAT_FIXES = [
    ("fsdp-one-unit", passes(24 * MB, again=False, reduced=(True,)), "auto_wrap_policy"),
    ("fsdp-small-units", passes(*[40_000] * 12, ms=1.0, reduced=(True,)), "auto_wrap_policy"),
    (
        "fsdp-every-pass",
        passes(8 * MB, 8 * MB, again=False, ms=4.0, reduced=(True, True, True)),
        "YOUR_MODEL.no_sync()",
    ),
]


@pytest.mark.parametrize(("cause", "body", "fix"), FLAT_FIXES)
def test_fsdp1_is_named_with_a_fix_of_its_own(cause: str, body: Body, fix: str) -> None:
    found = causes_of(body, models=0, trained=shards(12 * MB) | {"flat": True})
    assert list(found) == [cause]
    assert found[cause].sentence.startswith("FSDP1 ")
    assert fix in found[cause].fix
    of_fsdp2 = causes_of(body, models=0, trained=shards(12 * MB) | {"flat": False})[cause]
    assert of_fsdp2.sentence.startswith("FSDP2 ")
    assert fix not in of_fsdp2.fix
    # Earlier versions did not record ``flat``.
    unknown = causes_of(body, models=0, trained=shards(12 * MB))[cause]
    assert unknown.sentence.startswith("FSDP ")


def with_metrics(sizes: tuple[int, ...], metrics: int, **options: Any) -> Body:
    one_pass = passes(*sizes, **options, reduced=(True,))

    def body(script: Script, step: int) -> None:
        one_pass(script, step)
        for _ in range(metrics):
            script.call("all_gather", 16, 0.1, bytes_in=8, bytes_out=16)

    return body


def test_metrics_that_the_script_gathers_are_no_units() -> None:
    one = causes_of(with_metrics((24 * MB,), 1, again=False), models=0)
    assert "One call gathers all 24 MB" in one["fsdp-one-unit"].sentence
    units = with_metrics((524_288,) * 8, 16, ms=0.5)
    assert "fsdp-small-units" not in causes_of(units, models=0)


def test_a_reduction_of_the_last_micro_batch_is_right() -> None:
    body = passes(8 * MB, 8 * MB, again=False, ms=4.0, reduced=(False, False, True))
    assert causes_of(body, models=0) == {}


def test_passes_of_fsdp2_beside_a_ddp_model_are_not_taken_for_ddp() -> None:
    body = passes(8 * MB, 8 * MB, again=False, ms=4.0, reduced=(True, True, True))
    assert list(causes_of(body, models=1)) == ["fsdp-every-pass"]
