from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commprof.analysis.causes import pipeline_bubble, scalars_one_by_one
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.registry import sizes_are_told
from commprof.report.one_screen import prose
from commprof.trace.schema import OPS, Phase
from tests.support.builders.caused import Script, causes_of, facts_of, saved
from tests.support.builders.traces import MS

MB = 1_000_000
Body = Callable[[Script, int], None]


def trained(parameters: int, ddp: int) -> dict[str, Any]:
    none: dict[str, Any] = {
        "sharded": False,
        "flat": None,
        "ignored_bytes": 0,
        "other_libraries": [],
    }
    return {"parameter_bytes": parameters, "ddp_bytes": ddp, **none}


def again(op: str, size: int, after_update: bool, script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    if not after_update:
        script.call(op, size, 4.0)
    script.work(1.0, Phase.OPTIMIZER)
    if after_update:
        script.call(op, size, 4.0)


@pytest.mark.parametrize(
    ("op", "after_update", "words"),
    [
        ("all_reduce", False, "DDP has averaged the gradients by the end of backward. Each step "),
        ("all_reduce", True, "DDP keeps the weights, and so their moving averages, equal on all"),
        ("broadcast", True, "DDP keeps the weights, and so their moving averages, equal on all"),
    ],
)
def test_what_ddp_has_made_equal_need_not_be_sent_again(
    op: str, after_update: bool, words: str
) -> None:
    found = causes_of(partial(again, op, 4 * MB, after_update), trained=trained(4 * MB, 4 * MB))
    cause = found["exchanged-again"]
    assert cause.sentence.startswith(words)
    assert f"sends 4 MB more, as much as the whole model, in 1 {op} call" in cause.sentence
    assert saved(cause) == pytest.approx(4 / 37, abs=1e-3)


@pytest.mark.parametrize(
    ("size", "ddp", "models"), [(3 * MB, 4 * MB, 1), (4 * MB, 4 * MB, 2), (4 * MB, 0, 0)]
)
def test_other_tensors_and_models_that_ddp_does_not_reduce_may_be_sent(
    size: int, ddp: int, models: int
) -> None:
    body = partial(again, "all_reduce", size, True)
    assert "exchanged-again" not in causes_of(body, trained=trained(4 * MB, ddp), models=models)


def shown(passes: int, calls: int, script: Script, step: int) -> None:
    for number in range(passes):
        script.forward(5.0)
        if number < calls:
            script.call(ms=1.0)
        script.backward(5.0, {4 * MB: 2.0} if number == passes - 1 else None)
    script.work(1.0, Phase.OPTIMIZER)


def test_a_scalar_of_every_micro_batch_can_be_reduced_once_per_step() -> None:
    found = causes_of(partial(shown, 4, 4))
    assert list(found) == ["scalars-every-pass"]
    cause = found["scalars-every-pass"]
    assert "Each of the 4 micro batches of a step waits for small calls" in cause.sentence
    assert "4 all_reduce calls per step (4 bytes on average)" in cause.sentence
    assert saved(cause) == pytest.approx(3 / 47, abs=1e-3)


@pytest.mark.parametrize(("passes", "calls"), [(4, 1), (4, 2), (1, 1)])
def test_scalars_of_some_micro_batches_or_of_one_are_usual(passes: int, calls: int) -> None:
    assert causes_of(partial(shown, passes, calls)) == {}


def own(inside: bool, after_update: bool, script: Script, step: int) -> None:
    begin = script.now_ms
    script.forward(10.0)
    if inside:
        for place in range(2):
            script.now_ms += 10.0
            script.call(size=2 * MB, ms=4.0, graph_task=step + place)
        script.rank.phase(Phase.BACKWARD, round((begin + 10) * 1e6), round(script.now_ms * 1e6))
    else:
        script.backward(20.0)
        if not after_update:
            script.call(size=4 * MB, ms=8.0)
    script.work(1.0, Phase.OPTIMIZER)
    if after_update:
        script.call(size=4 * MB, ms=8.0)


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (False, "4 MB of gradients in 1 all_reduce call per step, after backward, when no compute"),
        (True, "4 MB of gradients in 2 all_reduce calls per step, while backward waits for each"),
    ],
)
def test_gradients_that_the_script_reduces_itself_are_not_hidden(inside: bool, words: str) -> None:
    found = causes_of(partial(own, inside, False), models=0, trained=trained(4 * MB, 0))
    assert list(found) == ["own-exchange"]
    assert words in found["own-exchange"].sentence
    assert found["own-exchange"].share == pytest.approx(8 / 39, abs=1e-3)


def test_weights_that_are_averaged_after_the_update_are_no_gradients() -> None:
    body = partial(own, False, True)
    assert "own-exchange" not in causes_of(body, models=0, trained=trained(4 * MB, 0))
    assert "own-exchange" not in causes_of(partial(own, False, False), models=0)


def norms(count: int, size: int, script: Script, step: int) -> None:
    script.forward(10.0, *[partial(script.call, size=size, ms=0.5)] * count)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_layers_that_exchange_statistics_are_named() -> None:
    found = causes_of(partial(norms, 8, 512), log={"has_sync_bn": 1})
    assert list(found) == ["statistics-each-layer"]
    assert "8 calls per step (512 bytes on average)" in found["statistics-each-layer"].sentence
    assert "GroupNorm" in found["statistics-each-layer"].fix
    assert saved(found["statistics-each-layer"]) == pytest.approx(4 / 37, abs=1e-3)


def codebooks(reductions: tuple[int, ...], in_backward: bool, script: Script, step: int) -> None:
    def exchanged() -> None:
        script.now_ms += 1.0
        for reduction in reductions:
            stack = ("/job/models/quantizer.py:123 forward",)
            script.call(size=512, ms=0.5, reduce_op=reduction, stack=stack)

    script.forward(2.0, *[exchanged] * 8)
    begin = script.now_ms
    for _ in range(8 * in_backward):
        script.call(size=512, ms=0.5, graph_task=script.passes)
    script.backward(20.0, {4 * MB: 2.0})
    script.rank.phase(Phase.BACKWARD, round(begin * MS), round(script.now_ms * MS))
    script.work(1.0, Phase.OPTIMIZER)


@pytest.mark.parametrize(("reductions", "remain"), [((0,), 1), ((0, 0), 1), ((0, 3), 2)])
def test_sums_without_gradients_are_to_be_joined(reductions: tuple[int, ...], remain: int) -> None:
    found = causes_of(partial(codebooks, reductions, False))
    assert list(found) == ["statistics-each-layer"]
    cause = found["statistics-each-layer"]
    assert "without gradients" in cause.sentence
    assert "one call after backward is enough" in cause.sentence
    # The card has five lines for this text.
    assert len(prose(f"Cause: {cause.sentence} The fix {cause.wins}.")) <= 5
    assert "Norm" not in cause.fix
    assert "torch.distributed.all_reduce(flat)" in cause.fix
    calls = 8 * len(reductions)
    assert saved(cause) == pytest.approx((calls - remain) * 0.5 / (33 + calls * 0.5), abs=1e-3)


def test_a_norm_is_one_also_where_most_passes_have_no_gradient() -> None:
    def body(script: Script, step: int) -> None:
        for _ in range(3):
            script.forward(2.0, *[partial(script.call, size=512, ms=0.5)] * 8)
        codebooks((0,), True, script, step)

    cause = causes_of(body)["statistics-each-layer"]
    assert "as SyncBatchNorm does with its statistics" in cause.sentence
    assert "without gradients" not in cause.sentence
    assert "GroupNorm" in cause.fix


def test_statistics_with_gradients_are_those_of_a_norm() -> None:
    cause = causes_of(partial(codebooks, (0,), True))["statistics-each-layer"]
    assert "as SyncBatchNorm does with its statistics" in cause.sentence
    assert "GroupNorm" in cause.fix


@pytest.mark.parametrize(("count", "size", "models"), [(3, 512, 1), (8, MB, 1), (8, 512, 0)])
def test_few_or_large_exchanges_of_layers_are_usual(count: int, size: int, models: int) -> None:
    assert causes_of(partial(norms, count, size), models=models) == {}


CAPPED = {"bucket_cap_bytes": 1000 * 2**20, "parameter_bytes": [10 * MB] * 8}


def one_bucket(sizes: tuple[int, ...], script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {size: 8.0 * size / sum(sizes) for size in sizes})
    script.work(1.0, Phase.OPTIMIZER)


def test_one_bucket_of_all_gradients_is_named_if_the_cap_is_set() -> None:
    found = causes_of(partial(one_bucket, (80 * MB,)), log=CAPPED)
    assert list(found) == ["ddp-one-bucket"]
    assert "sends 100% of the gradients in one bucket of 80 MB (bucket_cap_mb=1e+03)" in (
        found["ddp-one-bucket"].sentence
    )
    assert found["ddp-one-bucket"].share == pytest.approx(8 / 39, abs=1e-3)


@pytest.mark.parametrize(
    ("sizes", "log"),
    [
        ((80 * MB,), {"bucket_cap_bytes": 25 * 2**20}),
        ((30 * MB,), {}),
        ((40 * MB, 39 * MB), {}),
        ((80 * MB,), {"parameter_bytes": [70 * MB, 10 * MB]}),
    ],
)
def test_other_buckets_are_usual(sizes: tuple[int, ...], log: dict[str, Any]) -> None:
    found = causes_of(partial(one_bucket, sizes), log={**CAPPED, **log})
    assert "ddp-one-bucket" not in found


def grouped(new: bool, ms: float, script: Script, step: int) -> None:
    norms(0, 0, script, step)
    script.work(ms)
    script.call(ms=0.2, group=2 + step * new)


def test_groups_that_are_made_in_each_step_are_named() -> None:
    found = causes_of(partial(grouped, True, 8.0))
    assert list(found) == ["groups-made-anew"]
    assert "In 11 steps, the script makes 11 process groups" in found["groups-made-anew"].sentence
    assert found["groups-made-anew"].share == pytest.approx(8 / 41.2, abs=1e-3)
    assert causes_of(partial(grouped, False, 8.0)) == {}
    assert causes_of(partial(grouped, True, 0.5)) == {}


def layered(script: Script, step: int) -> None:
    """Layers of tensor parallelism communicate in a forward pass that capture does not see."""
    for place in range(6):
        script.work(2.0)
        script.call(size=40_000 + 4 * place, ms=1.0)
    begin = script.now_ms
    for place in range(6):
        script.now_ms += 4.0
        script.call(size=40_000 + 4 * place, ms=1.0, graph_task=step)
    script.rank.phase(Phase.BACKWARD, round(begin * 1e6), round(script.now_ms * 1e6))
    script.work(1.0, Phase.OPTIMIZER)


def test_calls_of_layers_are_not_joined_if_forward_was_not_seen() -> None:
    assert causes_of(layered, models=0) == {}


def staged(micro: int, slower_ms: float, script: Script, step: int) -> None:
    last = script.rank.rank == 1
    longer_ms = slower_ms * last
    waits_ms = (30.0 + slower_ms * (not last)) / micro
    for _ in range(micro):
        if last:
            script.call("recv", 4000, waits_ms, aux=0)
        script.forward(10.0 / micro)
        if not last:
            script.call("send", 4000, 0.1, aux=1)
    for number in range(micro):
        if not last:
            script.call("recv", 4000, waits_ms if number == 0 else 0.1, aux=1)
        script.backward((20.0 + longer_ms) / micro)
        if last:
            script.call("send", 4000, 0.1, aux=0)
    script.work(1.0, Phase.OPTIMIZER)


def test_a_pipeline_of_one_batch_needs_micro_batches_and_no_stage_is_late() -> None:
    found = causes_of(partial(staged, 1, 0.0), models=0)
    assert list(found) == ["pipeline-bubble"]
    cause = found["pipeline-bubble"]
    assert "a pipeline of 2 stages, and a step has 1 micro batch." in cause.sentence
    assert "leaves 50% of a step idle. With 8 smaller micro batches, 11% would be idle" in (
        cause.sentence
    )
    assert cause.share == pytest.approx(30 / 61.1, abs=0.01)
    assert "pipeline-bubble" not in causes_of(partial(staged, 8, 0.0), models=0)
    assert facts_of(partial(staged, 1, 0.0)).world.lateness.late_rank is None


def test_messages_of_unknown_size_count_as_micro_batches() -> None:
    facts = facts_of(partial(staged, 2, 0.0))
    told = pipeline_bubble.CAUSE.rule(facts)
    for position, calls in enumerate(list(facts.ranks)):
        made = facts.ranks._made  # type: ignore[attr-defined]
        made[position] = replace(calls, has_size=np.arange(len(calls.table)) % 4 > 0)
    assert told is not None
    assert "2 micro batches" in told.sentence
    assert pipeline_bubble.CAUSE.rule(facts) == told


def test_of_a_slower_stage_only_its_longer_work_counts_as_waiting_for_it() -> None:
    late = facts_of(partial(staged, 1, 4.0)).world.lateness.late_rank
    assert late is not None
    assert late.rank == 1
    assert late.phase == "backward"
    assert late.wait_ns == pytest.approx(4e6, rel=0.05)


def two_models(script: Script, step: int) -> None:
    for _ in range(2):
        script.forward(5.0)
        script.call(ms=1.0)
        script.backward(5.0, {4 * MB: 2.0})
        script.work(1.0, Phase.OPTIMIZER)


def sent_by_each(script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)
    for root in range(2):
        script.call("broadcast", 2 * MB, 2.0, aux=root)


def gossip(script: Script, step: int) -> None:
    rank, ranks = script.rank.rank, script.rank.world_size
    script.forward(10.0)
    script.backward(20.0)
    neighbours = sorted({(rank - 1) % ranks, (rank + 1) % ranks})
    for op, ms in (("send", 0.1), ("recv", 3.0)):
        for peer in neighbours:
            script.call(op, 4 * MB, ms, aux=peer)
    script.work(1.0, Phase.OPTIMIZER)


def star(script: Script, step: int) -> None:
    others = range(1, script.rank.world_size)
    if script.rank.rank:
        script.work(14.0)
        script.call("send", 4000, 0.5, aux=0)
        script.call("recv", 4 * MB, 13.0, aux=0)
        return
    for peer in others:
        script.call("recv", 4000, 5.0, aux=peer)
    script.backward(10.0)
    script.work(1.0, Phase.OPTIMIZER)
    for peer in others:
        script.call("send", 4 * MB, 0.5, aux=peer)


def sliced(op: str, group: int, script: Script, step: int) -> None:
    task = script.passes
    calls = [partial(script.call, size=16_000, ms=0.5, group=group)] * 6
    more = [partial(script.call, op, MB, 1.0)] * bool(op)
    script.forward(10.0, *calls, *more)
    begin = script.now_ms
    for _ in range(6):
        script.now_ms += 3.0
        script.call(size=16_000, ms=0.5, group=group, graph_task=task)
    script.rank.phase(Phase.BACKWARD, round(begin * 1e6), round(script.now_ms * 1e6))
    script.backward(2.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def large_layers(script: Script, step: int) -> None:
    for _ in range(4):
        script.work(3.0)
        script.call(size=MB, ms=1.0)
    begin = script.now_ms
    for _ in range(4):
        script.now_ms += 4.0
        script.call(size=MB, ms=1.0, graph_task=step)
    script.rank.phase(Phase.BACKWARD, round(begin * 1e6), round(script.now_ms * 1e6))
    script.work(1.0, Phase.OPTIMIZER)


def late_on_one(unseen: bool, buckets: dict[int, float], script: Script, step: int) -> None:
    ms = 10.0 + 8.0 * (script.rank.rank == 1)
    if unseen:
        script.work(ms)
    else:
        script.forward(ms)
    script.backward(20.0, buckets)
    if not buckets:
        script.call(size=4 * MB, ms=0.5)
    script.work(1.0, Phase.OPTIMIZER)


@pytest.mark.parametrize(
    ("body", "settings"),
    [
        (two_models, {"models": 2}),
        (partial(again, "all_reduce", 4 * MB, False), {"trained": trained(8 * MB, 4 * MB)}),
        (sent_by_each, {"trained": trained(4 * MB, 4 * MB)}),
        (gossip, {"models": 0, "ranks": 4}),
        (gossip, {"models": 0, "ranks": 2}),
        (star, {"models": 0, "ranks": 4}),
        (partial(sliced, "", 3), {}),
        (partial(sliced, "all_to_all_single", 1), {}),
        (large_layers, {"models": 0, "trained": trained(4 * MB, 0)}),
        (partial(late_on_one, False, {80 * MB: 0.5}), {"log": CAPPED, "meets": True}),
        (
            partial(late_on_one, True, {}),
            {"models": 0, "meets": True, "steps": 30, "trained": trained(4 * MB, 0)},
        ),
    ],
)
def test_healthy_jobs_show_no_cause(body: Body, settings: dict[str, Any]) -> None:
    assert causes_of(body, **settings) == {}


def with_unknown_sizes(unknown: str, scalars: int) -> Facts:
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0, {4 * MB: 2.0})
        script.work(1.0, Phase.OPTIMIZER)
        script.call("broadcast", 0, 1.0)
        for _ in range(scalars):
            script.call(ms=1.0)

    facts = facts_of(body)
    for position, calls in enumerate(list(facts.ranks)):
        of_kind = {
            "broadcast": calls.table.op == OPS.index("broadcast"),
            "bucket": calls.in_backward,
        }[unknown]
        made = facts.ranks._made  # type: ignore[attr-defined]
        made[position] = replace(calls, has_size=~of_kind)
        told = SimpleNamespace(size=~of_kind)
        object.__setattr__(calls.trace, "recorded", told)
    return facts


def test_a_call_of_unknown_size_hides_no_cause_of_the_other_calls() -> None:
    facts = with_unknown_sizes("broadcast", 8)
    assert sizes_are_told(facts)
    assert scalars_one_by_one.CAUSE.rule(facts) is not None
    assert not sizes_are_told(with_unknown_sizes("bucket", 8))
    assert not sizes_are_told(with_unknown_sizes("broadcast", 1))
