from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, saved
from tests.support.builders.traces import MS

MB = 1 << 20
EPOCH = 5
STEPS = 21


def passed(script: Script, begin_ms: float, **noted: int) -> None:
    noted = {"sampler": 0, "epoch": 0, "seed": 0, "batches": 5, "contents": 4, "length": 5} | noted
    noted |= {"begin_ns": round(begin_ms * MS), "end_ns": round(script.now_ms * MS)}
    kept: dict[str, list[int]] = script.rank.metadata.setdefault("data_passes", {})
    for key, value in noted.items():
        kept.setdefault(key, []).append(value)


def trained(
    read: Callable[[int, int], dict[str, int]], inside: Callable[[Script], None] | None = None
) -> Callable[[Script, int], None]:
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
    assert "the same order of samples in 4 passes" in found["epoch-not-set"].sentence
    assert not found["epoch-not-set"].wins


def test_a_sampler_that_each_epoch_makes_anew_is_named() -> None:
    body = trained(lambda rank, epoch: unset(rank, epoch, sampler=epoch + 1))
    assert list(causes_of(body, steps=STEPS)) == ["epoch-not-set"]


@pytest.mark.parametrize(
    "read",
    [
        lambda rank, epoch: unset(rank, epoch, number=epoch + 1),
        # The sampler does not shuffle.
        lambda rank, epoch: unset(rank, epoch, sampler=0) | {"epoch": 0},
        lambda rank, epoch: unset(rank, epoch, sampler=1 + epoch % 2, number=1 + epoch),
        lambda rank, epoch: unset(rank, epoch) | {"seed": 1000 + epoch},
        lambda rank, epoch: unset(rank, epoch, number=1 + epoch // 4),
        # A checksum of 0 means that a part of the batches was not compared.
        lambda rank, epoch: {"checksum": 0, "contents": 0, "sampler": epoch + 1, "epoch": 1},
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
    assert "the same order of samples in 3 of 4 shuffled passes" in found["epoch-not-set"].sentence


def evaluated(
    read: Callable[[int, int], dict[str, int]],
    batches: int = 8,
    each_ms: float = 8.0,
    inside: Callable[[Script], None] | None = None,
    loads: bool = False,
) -> Callable[[Script, int], None]:
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
    said = "4 times in 20 steps. Each evaluation has 8 batches and takes 64 ms"
    assert said in cause.sentence
    assert cause.share == pytest.approx(4 * 32 / (20 * 33 + 4 * 64), abs=1e-3)
    assert saved(cause) == pytest.approx(4 * 32 / (20 * 33 + 4 * 64), abs=2e-3)


@pytest.mark.parametrize(
    ("read", "options"),
    [
        (divided, {}),
        (lambda *_: {"checksum": 5}, {"loads": True}),
        (lambda *_: {"checksum": 0, "contents": 0}, {}),
        # There is one batch, or all batches are equal.
        (lambda *_: {"checksum": 5, "contents": 1}, {}),
        (lambda *_: {"checksum": 5}, {"batches": 1, "each_ms": 2.0}),
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


def begun(
    every: int, loads_ms: float, script: Script, step: int, workers: bool = False, **noted: int
) -> None:
    if step % every == 0:
        begin = script.now_ms
        if workers:
            script.work(4.0)
            script.note("loader_worker_starts", begin)
        begin = script.now_ms
        script.work(loads_ms, Phase.DATA)
        passed(script, begin, **({"batches": 1, "length": 100, "checksum": 1 + step} | noted))
    else:
        script.work(loads_ms, Phase.DATA)
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 1.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_a_pass_that_each_step_begins_for_one_batch_is_named() -> None:
    found = causes_of(partial(begun, 1, 8.0, workers=True), steps=STEPS)
    assert list(found) == ["pass-each-step"], "it explains the workers that are started anew"
    cause = found["pass-each-step"]
    assert "of 100 batches" in cause.sentence
    assert "the same batch" not in cause.sentence
    assert "iter(YOUR_LOADER)  # once" in cause.fix
    assert "12 ms per step" in cause.sentence
    assert cause.share == pytest.approx(12 / 44, abs=1e-3)


def test_at_most_the_time_around_each_pass_is_won() -> None:
    """The work of 6 ms stands for the deletion of the iterator."""

    def body(script: Script, step: int) -> None:
        begin = script.now_ms
        script.work(8.0, Phase.DATA)
        passed(script, begin, batches=1, length=100, checksum=1 + step)
        script.work(6.0)
        script.forward(10.0)
        script.backward(20.0, {4 * MB: 1.0})
        script.work(1.0, Phase.OPTIMIZER)

    cause = causes_of(body, steps=STEPS)["pass-each-step"]
    assert "8 ms per step" in cause.sentence
    assert cause.share == pytest.approx(14 / 46, abs=1e-3)


def test_the_first_batch_of_each_pass_may_be_the_same() -> None:
    cause = causes_of(partial(begun, 1, 8.0, checksum=7), steps=STEPS)["pass-each-step"]
    assert "gives the same batch, so the rank trains on it only." in cause.sentence
    unknown = causes_of(partial(begun, 1, 8.0, checksum=0), steps=STEPS)["pass-each-step"]
    assert "the same batch" not in unknown.sentence


@pytest.mark.parametrize(
    ("every", "loads_ms", "noted"),
    [
        (1, 8.0, {"length": 1}),  # the data are one batch
        (1, 8.0, {"length": 0}),
        (1, 8.0, {"batches": 100}),
        (4, 8.0, {}),  # such a step may read validation data
        (1, 0.5, {}),
    ],
)
def test_passes_of_one_batch_may_be_meant(
    every: int, loads_ms: float, noted: dict[str, int]
) -> None:
    assert causes_of(partial(begun, every, loads_ms, **noted), steps=STEPS) == {}


def test_passes_of_earlier_recordings_have_no_length() -> None:
    def body(script: Script, step: int) -> None:
        begun(1, 8.0, script, step)
        del script.rank.metadata["data_passes"]["length"][:]
        if step == STEPS - 1:
            del script.rank.metadata["data_passes"]["length"]

    assert causes_of(body, steps=STEPS) == {}
