from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.card import card
from commprof.analysis.collectives.apart import TrainedApart, trained_apart
from commprof.analysis.verdict import verdict
from commprof.analysis.world import WorldResult
from commprof.report.card import render
from commprof.trace.exchanged import exchanged_by
from commprof.trace.schema import Phase
from tests.support.analysed import analyse_world
from tests.support.builders.results import detail, parts, run_result, world
from tests.support.builders.traces import MS, Rank, world_run

PARAMETERS = 4_000_000
STEPS = 40

#: Adds the exchanges of one step on one rank; the last argument is the step's begin in ns.
Exchange = Callable[[Rank, int, int], None]


def trained(**values: Any) -> dict[str, Any]:
    none = {"sharded": False, "ddp_bytes": 0, "ignored_bytes": 0, "other_libraries": []}
    return {"parameter_bytes": PARAMETERS, **none, **values}


def job(
    exchange: Exchange = lambda rank, step, at: None,
    ranks: int = 2,
    passes: int = 1,
    updates: Callable[[int], bool] = lambda rank: True,
    about: dict[str, Any] | None = None,
    groups: Callable[[int], dict[int, tuple[str, int]]] | None = None,
    capture: str = "native",
    dropped: int = 0,
) -> WorldResult:
    found = [
        Rank(
            rank,
            ranks,
            groups=None if groups is None else groups(rank),
            capture=capture,
            dropped=dropped,
            **({} if about == {} else {"trained": about or trained()}),
        )
        for rank in range(ranks)
    ]
    for rank in found:
        for step in range(STEPS):
            at = 10 * MS * (step + 1)
            for turn in range(passes):
                begin = at + turn * MS
                rank.phase(Phase.BACKWARD, begin, begin + MS)
            exchange(rank, step, at)
            if updates(rank.rank):
                rank.phase(Phase.OPTIMIZER, at + 8 * MS, at + 9 * MS)
            rank.step(at, at + 10 * MS)
    world_ = analyse_world(world_run(found))
    assert world_ is not None
    return world_


def all_reduce(bytes: int, every: int = 1, op: str = "all_reduce", group: int = 1) -> Exchange:
    def exchanged(rank: Rank, step: int, at: int) -> None:
        if step % every == every - 1:
            op_id = rank.collective(step, at + 5 * MS, at + 7 * MS, bytes=bytes, op=op, group=group)
            rank.wait(op_id, at + 5 * MS, at + 7 * MS)

    return exchanged


def in_backward(bytes: int) -> Exchange:
    def exchanged(rank: Rank, step: int, at: int) -> None:
        rank.collective(step, at + MS // 2, at + 2 * MS, bytes=bytes, graph_task=step)
        rank.finalize(at + MS, at + 2 * MS, 0, graph_task=step)

    return exchanged


def before_training(rank: Rank, step: int, at: int) -> None:
    if step == 0:
        rank.collective(0, 5 * MS, 6 * MS, bytes=PARAMETERS, op="broadcast")


@pytest.mark.parametrize(
    "exchange",
    [
        lambda rank, step, at: None,
        # A loss, metrics and barriers are no gradients, nor are initial parameters.
        all_reduce(8),
        all_reduce(8, op="all_gather"),
        all_reduce(0, op="barrier"),
        before_training,
    ],
)
@pytest.mark.parametrize("passes", [1, 4])
def test_ranks_that_exchange_no_gradients_train_apart(exchange: Exchange, passes: int) -> None:
    found = job(exchange, ranks=3, passes=passes).communication.apart
    assert found is not None
    assert (found.kind, found.together) == ("nothing", ((0,), (1,), (2,)))
    assert found.apart_bytes == PARAMETERS
    assert found.sentence.startswith(
        "The 3 ranks train apart: in 40 updates, no rank exchanged the gradients of its "
        "parameters (4 MB) with another"
    )
    assert "not wrapped in DistributedDataParallel" in found.sentence


@pytest.mark.parametrize(
    ("exchange", "more"),
    [
        (all_reduce(PARAMETERS), {}),
        (all_reduce(PARAMETERS, op="reduce_scatter_tensor"), {}),
        # DDP exchanges the gradients in the last of four passes.
        (in_backward(PARAMETERS), {"passes": 4}),
        # PowerSGD sends 1/2000 of the gradients.
        (in_backward(PARAMETERS // 2000), {}),
        # Compression without DDP sends 1/100 of the parameters in one call.
        (all_reduce(PARAMETERS // 100), {}),
        # Local SGD and DiLoCo average the parameters every 20 steps.
        (all_reduce(PARAMETERS, every=20), {}),
        # A pipeline sends activations, and experts exchange tokens.
        (all_reduce(4096, op="send"), {}),
        (all_reduce(4096, op="all_to_all_single"), {}),
        # ZeRO broadcasts the parameters after the update.
        (all_reduce(PARAMETERS // 8, op="broadcast"), {}),
        # Evaluation and inference have neither gradients nor updates.
        (all_reduce(8), {"passes": 0}),
        (all_reduce(8), {"updates": lambda rank: False}),
        (all_reduce(8), {"updates": lambda rank: rank == 0}),
        (all_reduce(8), {"ranks": 1}),
        # Lost records may have held the exchange.
        (all_reduce(8), {"dropped": 1}),
        # Traces of older versions do not tell the bytes of the parameters.
        (all_reduce(4096), {"about": {}}),
    ],
)
def test_jobs_that_exchange_gradients_or_train_nothing_are_not_accused(
    exchange: Exchange, more: dict[str, Any]
) -> None:
    assert job(exchange, **more).communication.apart is None


def test_a_group_that_leaves_ranks_out_is_named_with_them() -> None:
    def three_of_four(rank: int) -> dict[int, tuple[str, int]]:
        return {1: ("three", 3)} if rank < 3 else {1: ("0", 4)}

    def exchange(rank: Rank, step: int, at: int) -> None:
        if rank.rank < 3:
            all_reduce(PARAMETERS)(rank, step, at)

    found = job(exchange, ranks=4, groups=three_of_four).communication.apart
    assert found is not None
    assert (found.kind, found.together) == ("groups", ((0, 1, 2), (3,)))
    assert found.sentence.startswith("The ranks train apart: ranks 0-2 and rank 3 do not exchange")


def test_pairs_that_exchange_gradients_among_themselves_only_train_apart() -> None:
    def pair(rank: int) -> dict[int, tuple[str, int]]:
        return {1: (f"pair {rank // 2}", 2)}

    found = job(all_reduce(PARAMETERS), ranks=4, groups=pair).communication.apart
    assert found is not None
    assert found.together == ((0, 1), (2, 3))

    def also_across(rank: int) -> dict[int, tuple[str, int]]:
        return {1: (f"pair {rank // 2}", 2), 2: (f"across {rank % 2}", 2)}

    def both(rank: Rank, step: int, at: int) -> None:
        all_reduce(PARAMETERS)(rank, step, at)
        all_reduce(PARAMETERS // 2, group=2)(rank, step, at)

    assert job(both, ranks=4, groups=also_across).communication.apart is None


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"capture": "python"}, "the capture in pure Python sees only DDP's buckets"),
        (
            {"about": trained(other_libraries=["Horovod"])},
            "the script has loaded Horovod, whose communication commprof cannot see",
        ),
    ],
)
def test_an_exchange_that_capture_cannot_see_is_not_seen(more: dict[str, Any], why: str) -> None:
    found = job(**more).communication.apart
    assert found is not None
    assert found.kind == "not seen"
    assert why in found.sentence
    assert found.advice == ""
    assert "apart" not in found.sentence


@pytest.mark.parametrize(
    ("about", "beside", "apart_bytes"),
    [
        (trained(ddp_bytes=3_000_000), 0, 1_000_000),
        (trained(ddp_bytes=3_000_000), 8, 1_000_000),
        # The script itself exchanges the remaining 1 MB, in half precision.
        (trained(ddp_bytes=3_000_000), 500_000, 0),
        # DDP ignores the remaining 1 MB, or the optimizer has shards.
        (trained(ddp_bytes=3_000_000, ignored_bytes=1_000_000), 0, 0),
        (trained(ddp_bytes=3_000_000, sharded=True), 0, 0),
        (trained(ddp_bytes=PARAMETERS), 0, 0),
        (trained(), 0, 0),
    ],
)
def test_parameters_outside_of_the_ddp_model_are_named(
    about: dict[str, Any], beside: int, apart_bytes: int
) -> None:
    def exchange(rank: Rank, step: int, at: int) -> None:
        in_backward(3_000_000)(rank, step, at)
        if beside:
            rank.collective(STEPS + step, at + 5 * MS, at + 6 * MS, bytes=beside)

    found = job(exchange, about=about).communication.apart
    assert (found.apart_bytes if found else 0) == apart_bytes
    if found is not None:
        assert found.kind == "parameters"
        assert found.sentence.startswith(
            "The ranks update 4 MB of parameters, but do not exchange the gradients of 1 MB"
        )


def test_the_finding_is_the_first_sentence_of_the_report() -> None:
    found = job().communication.apart
    assert found is not None
    result = run_result(world(2, parts=parts(exposed_ms=0.0), apart=found))
    details = [detail(2, backward=60)]
    judged = verdict(result, details)
    assert judged is not None
    assert judged.headline.startswith("The 2 ranks train apart:")
    made = card(result, details, judged, Path("r"))
    assert made is not None
    text = " ".join(render(made).split())
    assert "needs no change" not in text
    assert "No gradients are exchanged: wrap the model, and call the wrapper." in text


def test_too_little_is_known_of_a_single_recorded_rank() -> None:
    rank = Rank(0, 2, trained=trained())
    rank.phase(Phase.BACKWARD, 0, MS)
    rank.phase(Phase.OPTIMIZER, 2 * MS, 3 * MS)
    rank.step(0, 10 * MS)
    found: TrainedApart | None = trained_apart([exchanged_by(rank.trace())], 2, True)
    assert found is None
