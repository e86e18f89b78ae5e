"""Causes that the ranks' passes over DataLoaders show: what each rank reads, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, saved
from tests.support.builders.traces import MS

MB = 1 << 20
#: Steps of an epoch.
EPOCH = 5
STEPS = 21


def passed(script: Script, begin_ms: float, **noted: int) -> None:
    """Notes a pass over a DataLoader from a time until now."""
    noted = {"sampler": 0, "epoch": 0, "seed": 0, "batches": 5, "contents": 4} | noted
    noted |= {"begin_ns": round(begin_ms * MS), "end_ns": round(script.now_ms * MS)}
    kept: dict[str, list[int]] = script.rank.metadata.setdefault("data_passes", {})
    for key, value in noted.items():
        kept.setdefault(key, []).append(value)


def trained(
    read: Callable[[int, int], dict[str, int]], inside: Callable[[Script], None] | None = None
) -> Callable[[Script, int], None]:
    """Epochs of steps of 33 ms; ``read``: what a pass reads, by rank and number of the epoch."""
    begun: dict[int, float] = {}

    def body(script: Script, step: int) -> None:
        rank = script.rank.rank
        if step % EPOCH == 0:
            begun[rank] = script.now_ms
        script.work(1.0, Phase.DATA)
        if inside is not None:
            inside(script)
        script.forward(10.0)
        script.backward(20.0, {4 * MB: 1.0})
        script.work(1.0, Phase.OPTIMIZER)
        if step % EPOCH == EPOCH - 1:
            passed(script, begun[rank], **read(rank, step // EPOCH))

    return body


def divided(rank: int, epoch: int) -> dict[str, int]:
    return {"checksum": 100 * rank + epoch}


def unset(rank: int, epoch: int, sampler: int = 1, number: int = 1) -> dict[str, int]:
    return {"checksum": 10 * rank + number, "sampler": sampler, "epoch": number}


def test_a_sampler_whose_epoch_is_not_set_is_named() -> None:
    found = causes_of(trained(unset), steps=STEPS)
    assert list(found) == ["epoch-not-set"]
    assert "in the same order in 4 passes" in found["epoch-not-set"].sentence
    assert not found["epoch-not-set"].wins


def test_a_sampler_that_each_epoch_makes_anew_is_named() -> None:
    body = trained(lambda rank, epoch: unset(rank, epoch, sampler=epoch + 1))
    assert list(causes_of(body, steps=STEPS)) == ["epoch-not-set"]


@pytest.mark.parametrize(
    "read",
    [
        lambda rank, epoch: unset(rank, epoch, number=epoch + 1),  # set
        lambda rank, epoch: unset(rank, epoch, sampler=0) | {"epoch": 0},  # does not shuffle
        lambda rank, epoch: unset(rank, epoch, sampler=1 + epoch % 2, number=1 + epoch),
        lambda rank, epoch: unset(rank, epoch) | {"seed": 1000 + epoch},
        # Several passes over the samples of each of two collections.
        lambda rank, epoch: unset(rank, epoch, number=1 + epoch // 4),
        # Samplers of their own, and batches of which a part was not compared.
        lambda rank, epoch: {"checksum": 0, "contents": 0, "sampler": epoch + 1, "epoch": 1},
        # Each epoch reads other data, through a sampler of its own.
        lambda rank, epoch: {"checksum": 10 * rank + epoch, "sampler": epoch + 1, "epoch": 1},
    ],
)
def test_a_sampler_whose_order_changes_is_right(
    read: Callable[[int, int], dict[str, int]],
) -> None:
    assert causes_of(trained(read), steps=2 * STEPS) == {}


def test_an_order_that_repeats_in_most_passes_is_named_with_their_number() -> None:
    body = trained(lambda rank, epoch: unset(rank, epoch, number=1 if epoch else 5))
    found = causes_of(body, steps=STEPS)
    assert "in the same order in 3 of 4 shuffled passes" in found["epoch-not-set"].sentence


def evaluated(
    read: Callable[[int, int], dict[str, int]],
    batches: int = 8,
    each_ms: float = 8.0,
    inside: Callable[[Script], None] | None = None,
    loads: bool = False,
) -> Callable[[Script, int], None]:
    """After each epoch the ranks evaluate batches, with a call in the forward pass of each.

    ``loads``: they only load the batches.
    """
    train = trained(divided, inside)

    def body(script: Script, step: int) -> None:
        train(script, step)
        if step % EPOCH == EPOCH - 1:
            begin = script.now_ms
            for _ in range(batches):
                if loads:
                    script.work(each_ms)
                    continue
                script.forward(each_ms - 0.5, lambda: script.call("broadcast", 400, 0.5))
            passed(script, begin, batches=batches, **read(script.rank.rank, step // EPOCH))

    return body


def test_samples_that_every_rank_evaluates_are_named_with_what_a_part_wins() -> None:
    found = causes_of(evaluated(lambda *_: {"checksum": 55}), steps=STEPS)
    assert next(iter(found)) == "evaluated-by-all"
    cause = found["evaluated-by-all"]
    said = "loads the same samples for an evaluation, 4 times in 20 steps: 8 batches in 64 ms"
    assert said in cause.sentence
    # Half of 64 ms, four times in 20 steps of 33 ms.
    assert cause.share == pytest.approx(4 * 32 / (20 * 33 + 4 * 64), abs=1e-3)
    assert saved(cause) == pytest.approx(4 * 32 / (20 * 33 + 4 * 64), abs=2e-3)


@pytest.mark.parametrize(
    ("read", "options"),
    [
        (divided, {}),
        (lambda *_: {"checksum": 5}, {"loads": True}),
        (lambda *_: {"checksum": 0, "contents": 0}, {}),  # a part was not compared
        (lambda *_: {"checksum": 5, "contents": 1}, {}),  # one batch, or constant data
        (lambda *_: {"checksum": 5}, {"batches": 1, "each_ms": 2.0}),  # a small evaluation
    ],
)
def test_an_evaluation_of_parts_or_of_few_samples_is_right(
    read: Callable[[int, int], dict[str, int]], options: dict[str, Any]
) -> None:
    assert "evaluated-by-all" not in causes_of(evaluated(read, **options), steps=STEPS)


@pytest.mark.parametrize(
    "inside",
    [
        lambda script: script.call("send", 400, 0.2),
        lambda script: script.call("all_to_all_single", 400, 0.2),
        lambda script: script.forward(1.0, lambda: script.call(size=400, ms=0.2)),
    ],
)
def test_ranks_that_divide_a_batch_need_the_same_one(inside: Callable[[Script], None]) -> None:
    found = causes_of(evaluated(lambda *_: {"checksum": 55}, inside=inside), steps=STEPS)
    assert "evaluated-by-all" not in found


def test_a_job_without_ddp_may_divide_a_batch() -> None:
    found = causes_of(evaluated(lambda *_: {"checksum": 55}), steps=STEPS, models=0)
    assert "evaluated-by-all" not in found
