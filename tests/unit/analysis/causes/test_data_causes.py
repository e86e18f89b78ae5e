from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from commprof.trace.schema import OPS, Phase
from tests.support.builders.caused import Script, causes_of, saved

Body = Callable[[Script, int], None]


def lengths(step: int, rank: int) -> float:
    return random.Random(1000 * step + rank).choice([4.0, 8.0, 16.0, 32.0])


def batches(alike: bool = False, backward_noise: bool = False) -> Body:
    def body(script: Script, step: int) -> None:
        drawn = lengths(step, 0 if alike else script.rank.rank)
        script.forward(10.0 if backward_noise else drawn)
        script.backward(20.0 + drawn if backward_noise else 2 * drawn)
        script.meet(1.0)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def test_batches_of_unequal_work_are_named_with_what_equal_ones_win() -> None:
    found = causes_of(batches(), steps=61, models=0)
    assert list(found) == ["uneven-batches"]
    work = [[3 * lengths(step, rank) for rank in range(2)] for step in range(1, 61)]
    longest, mean = (sum(map(of, work)) for of in (max, lambda pair: sum(pair) / 2))
    assert saved(found["uneven-batches"]) == pytest.approx(
        (longest - mean) / (longest + 2 * len(work)), abs=0.01
    )


def test_batches_of_one_length_on_all_ranks_are_right() -> None:
    assert causes_of(batches(alike=True), steps=61, models=0) == {}


def test_disturbances_of_one_phase_are_not_called_uneven_batches() -> None:
    assert "uneven-batches" not in causes_of(batches(backward_noise=True), steps=61, models=0)


def test_a_rank_that_always_has_more_work_is_not_called_uneven() -> None:
    def body(script: Script, step: int) -> None:
        drawn = lengths(step, 0) + 20.0 * script.rank.rank
        script.forward(drawn)
        script.backward(2 * drawn)
        script.meet(1.0)

    assert "uneven-batches" not in causes_of(body, steps=61, models=0)


def sent(size: int, op: str = "broadcast", roots: int = 1, after: bool = False) -> Body:
    def body(script: Script, step: int) -> None:
        def send() -> None:
            root = step % roots
            script.work(10.0 if script.rank.rank == root else 0.0)
            script.call(
                op, size, 2.0, bytes_in=size, bytes_out=size // (1 + (op == "scatter")), aux=root
            )

        if not after:
            send()
        script.forward(10.0)
        script.backward(20.0, {1_000_000: 2.0})
        if after:
            send()
        script.work(1.0, Phase.OPTIMIZER)

    return body


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_batches_that_one_rank_sends_are_named(op: str) -> None:
    assert op in OPS
    cause = causes_of(sent(500_000, op), meets=True)["batches-from-one-rank"]
    assert cause.sentence.startswith(
        "Rank 0 reads every batch and sends it to the others before the first forward pass: 500 kB "
    )
    # Rank 1 waits 10 ms for rank 0 and 2 ms for the transfer.
    assert "waits 12 ms" in cause.sentence
    assert "DistributedSampler" in cause.fix


def test_pickled_objects_are_no_batches() -> None:
    def body(script: Script, step: int) -> None:
        script.work(10.0 if script.rank.rank == 0 else 0.0)
        script.call("broadcast", 8, 1.0, "Long", aux=0)
        script.call("broadcast", 500_000, 3.0, "Byte", bytes_in=500_000, aux=0)
        script.forward(10.0)
        script.backward(20.0, {1_000_000: 2.0})
        script.work(1.0, Phase.OPTIMIZER)

    found = causes_of(body, meets=True)
    assert set(found) == {"pickled-objects", "rank-busier"}
    fix = found["pickled-objects"].fix
    assert "torch.distributed.broadcast_object_list(YOUR_OBJECTS, src=0)" in fix
    assert "loss" not in fix


@pytest.mark.parametrize(
    ("body", "trained"),
    [
        pytest.param(sent(1000), 9_000_000, id="flags"),
        pytest.param(sent(500_000, roots=2), 9_000_000, id="roots in turn"),
        pytest.param(sent(500_000, after=True), 9_000_000, id="after backward"),
        pytest.param(sent(500_000), 500_000, id="weights"),
    ],
)
def test_other_broadcasts_are_no_batches(body: Body, trained: int) -> None:
    metadata = {
        "parameter_bytes": trained,
        "sharded": False,
        "ddp_bytes": trained,
        "ignored_bytes": 0,
        "other_libraries": [],
    }
    assert "batches-from-one-rank" not in causes_of(body, meets=True, trained=metadata)
