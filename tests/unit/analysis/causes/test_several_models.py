from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, saved

MB = 1_000_000
D, G = {4 * MB: 4.0}, {MB: 1.0}


def trained(*cycle: list[int], sizes: tuple[int, ...] = (4 * MB, MB)) -> dict[str, Any]:
    """Each list of ``cycle`` names the models that one update trains."""
    return {
        "parameter_bytes": sum(sizes),
        "sharded": False,
        "flat": None,
        "ddp_bytes": sum(sizes),
        "ignored_bytes": 0,
        "other_libraries": [],
        "ddp_model_bytes": list(sizes),
        "updated_models": [cycle[number % len(cycle)] for number in range(10)],
        "kept_gradients": [[]] * 10,
    }


def gan(passes: list[dict[int, float]], updates: int, script: Script, step: int) -> None:
    for buckets in passes:
        script.forward(5.0)
        script.backward(10.0, buckets)
        for _ in range(updates):
            script.work(1.0, Phase.OPTIMIZER)


def test_gradients_of_a_discriminator_in_the_generator_s_pass_are_needless() -> None:
    found = causes_of(partial(gan, [D, {**D, **G}], 1), models=2, trained=trained([0], [1]))
    assert list(found) == ["ddp-other-model"]
    cause = found["ddp-other-model"]
    assert "exchanges 4 MB of gradients per step for nothing" in cause.sentence
    # The fix removes 4 ms; a step has 30 ms of passes, 9 ms of exchanges and 2 ms of updates.
    assert saved(cause) == pytest.approx(4 / 41, abs=1e-3)
    assert "requires_grad_(False)" in cause.fix


def test_every_micro_batch_of_the_generator_s_pass_is_needless() -> None:
    def body(script: Script, step: int) -> None:
        for buckets in (D, {**D, **G}):
            gan([buckets, buckets], 0, script, step)
            script.work(1.0, Phase.OPTIMIZER)

    cause = causes_of(body, models=2, trained=trained([0], [1]))["ddp-other-model"]
    assert "exchanges 8 MB of gradients per step for nothing" in cause.sentence
    # The fix removes 8 ms; a step has 60 ms of passes, 18 ms of exchanges and 2 ms of updates.
    assert saved(cause) == pytest.approx(8 / 80, abs=1e-3)


def test_a_generator_that_is_updated_in_every_second_round_is_told_too() -> None:
    found = causes_of(partial(gan, [D, D, {**D, **G}], 1), models=2, trained=trained([0], [0], [1]))
    assert "exchanges 4 MB of gradients per step" in found["ddp-other-model"].sentence


@pytest.mark.parametrize(
    ("passes", "updates", "about"),
    [
        ([D, G], 1, trained([0], [1])),  # the discriminator is frozen during the second pass
        ([D, {**D, **G}], 1, trained([0], [0, 1])),  # the second update trains both models
        ([{**D, **G}, {**D, **G}], 2, trained([0], [1])),
        ([D, {**D, **G}], 1, trained([0], [])),
        ([D, {**D, **G}], 1, trained([1], [0])),
        # The bytes of the models do not match the buckets.
        ([D, {**D, **G}], 1, trained([0], [1], sizes=(3 * MB, MB))),
        ([D, {**D, **G}], 1, {**trained([0], [1]), "updated_models": [[0]] * 5 + [[1]] * 5}),
        ([D, {**D, **G}], 1, {**trained([0], [1]), "ddp_model_bytes": []}),
        # The second update may use the sum of the gradients of both passes.
        ([D, {**D, **G}], 1, {**trained([0], [1]), "kept_gradients": [[], *[[], [0]] * 4, []]}),
    ],
)
def test_gradients_that_an_update_may_use_are_needed(
    passes: list[dict[int, float]], updates: int, about: dict[str, Any]
) -> None:
    assert causes_of(partial(gan, passes, updates), models=2, trained=about) == {}


def test_needless_gradients_that_take_little_are_not_named() -> None:
    tiny, other = {40_000: 0.1}, {10_000: 0.1}
    sizes = trained([0], [1], sizes=(40_000, 10_000))
    assert causes_of(partial(gan, [tiny, {**tiny, **other}], 1), models=2, trained=sizes) == {}


MODULES = {40_000 + 10_000 * number + number * 909: 0.5 + 0.01 * number for number in range(12)}
CAP = 25 * 2**20


def log_of(buckets: dict[int, float]) -> dict[str, Any]:
    return {"bucket_cap_bytes": CAP, "parameter_bytes": [sum(buckets) // 12]}


def wrapped(passes: int, buckets: dict[int, float], script: Script, step: int) -> None:
    sizes = list(buckets)
    for number in range(passes):
        script.forward(10.0)
        script.backward(20.0, {size: buckets[size] for size in sizes[number::passes]})
    script.work(1.0, Phase.OPTIMIZER)


def experts(script: Script, step: int) -> None:
    script.rank.groups[2] = ("experts", 2)
    script.forward(10.0)
    begin, task = script._now, script.passes
    script.passes += 1
    script.now_ms += 20.0
    issue = script._now
    for number, (size, ms) in enumerate(MODULES.items()):
        script.now_ms += ms
        group = 1 + number % 2
        script.rank.collective(
            100 * step + number, issue, script._now, size, task, group=group, dtype=1
        )
    script.rank.finalize(issue, script._now, 0, graph_task=task)
    script.rank.phase(Phase.BACKWARD, begin, script._now)
    script.work(1.0, Phase.OPTIMIZER)


def test_models_of_several_groups_of_ranks_cannot_be_one_model() -> None:
    assert "ddp-each-module" not in causes_of(experts, models=12, log=log_of(MODULES))


def test_modules_that_are_wrapped_one_by_one_are_told() -> None:
    found = causes_of(partial(wrapped, 1, MODULES), models=12, log=log_of(MODULES))
    assert list(found) == ["ddp-each-module"]
    cause = found["ddp-each-module"]
    assert cause.sentence.startswith("12 modules are DDP models of their own")
    assert "12 buckets of 100 kB" in cause.sentence or "12 buckets of 95" in cause.sentence
    assert "One DDP model of all modules would make 2 buckets" in cause.sentence
    # Two calls of one latency replace twelve calls, which nothing hides in this job.
    assert 0.05 < saved(cause) < sum(MODULES.values()) / 37


LARGE = {20 * size: ms for size, ms in MODULES.items()}


@pytest.mark.parametrize(
    ("passes", "buckets", "settings"),
    [
        (12, MODULES, {"models": 12, "log": log_of(MODULES)}),
        (1, LARGE, {"models": 12, "log": log_of(LARGE)}),
        (1, MODULES, {"models": 3, "log": log_of(MODULES)}),
        (1, dict.fromkeys(MODULES, 0.01), {"models": 12, "log": log_of(MODULES)}),
        (1, MODULES, {"models": 12}),
    ],
)
def test_models_with_passes_of_their_own_or_large_buckets_are_usual(
    passes: int, buckets: dict[int, float], settings: dict[str, Any]
) -> None:
    assert "ddp-each-module" not in causes_of(partial(wrapped, passes, buckets), **settings)
