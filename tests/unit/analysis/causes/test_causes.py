from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.causes.facts import at_lines
from commprof.trace.schema import REDUCE_OPS, Phase
from tests.support.builders.caused import Script, causes_of, saved

MB = 1_000_000


def trained(script: Script, ms: float = 10.0) -> None:
    script.forward(ms)
    script.backward(2 * ms, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_a_usual_job_has_no_cause() -> None:
    assert causes_of(lambda script, step: trained(script)) == {}


def buffers(script: Script, step: int) -> None:
    script.forward(10.0, lambda: script.call("broadcast", 2 * MB, 4.0))
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_buffers_in_every_forward_are_named_with_their_bytes_and_time() -> None:
    found = causes_of(buffers)
    assert list(found) == ["ddp-buffers"]
    cause = found["ddp-buffers"]
    assert "2 MB in 1 broadcast and 4 ms per step" in cause.sentence
    assert saved(cause) == pytest.approx(4 / 37, abs=1e-3)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.10.0+cu128", "broadcast_buffers=False"),
        ("2.13.0+cpu", "forward_sync_buffers=False"),
        ("", "broadcast_buffers=False"),
    ],
)
def test_the_fix_of_buffers_uses_the_name_that_the_job_s_torch_has(version: str, name: str) -> None:
    assert f"(YOUR_MODEL, {name})" in causes_of(buffers, torch=version)["ddp-buffers"].fix


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


@pytest.mark.parametrize("longest_ms", [2.6, 9.0])
def test_buffers_whose_time_may_be_chance_are_not_named(longest_ms: float) -> None:
    """The broadcasts take about 1.3 ms per step on average, in few steps or in many."""

    def body(script: Script, step: int) -> None:
        ms = longest_ms if step % round(longest_ms / 1.3) == 0 else 0.05
        script.forward(10.0, lambda: script.call("broadcast", 4096, ms))
        script.backward(20.0, {4 * MB: 2.0})
        script.work(1.0, Phase.OPTIMIZER)

    assert causes_of(body, steps=21) == {}


def accumulated(synced: set[int], passes: int = 4):  # type: ignore[no-untyped-def]
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
    # The fix removes three exchanges of 3 ms each from a step of 49 ms.
    assert saved(cause) == pytest.approx(9 / 49, abs=1e-3)


def test_an_exchange_of_some_micro_batches_and_the_last_is_named() -> None:
    cause = causes_of(accumulated({1, 3}))["ddp-every-pass"]
    assert "in 2 of the 4 backward passes" in cause.sentence
    assert saved(cause) == pytest.approx(3 / 43, abs=1e-3)


def test_an_exchange_of_every_micro_batch_is_named_though_epochs_end_early() -> None:
    """An epoch has ten micro batches, so its last update has only two."""

    def body(script: Script, step: int) -> None:
        accumulated({0, 1, 2, 3}, passes=2 if step % 3 == 2 else 4)(script, step)

    assert "all 4 backward passes" in causes_of(body)["ddp-every-pass"].sentence


@pytest.mark.parametrize(("last_only", "is_named"), [(False, True), (True, False)])
def test_an_exchange_of_every_micro_batch_is_named_on_a_busy_host(
    last_only: bool, is_named: bool
) -> None:
    def body(script: Script, step: int) -> None:
        script.work(300.0 if step % 4 == 1 and script.rank.rank == step // 4 % 2 else 0.0)
        for micro in range(2):
            script.forward(30.0)
            script.backward(10.0, {8 * MB: 6.0} if micro or not last_only else None)
        script.work(1.0, Phase.OPTIMIZER)

    found = causes_of(body, meets=True)
    assert ("ddp-every-pass" in found) == is_named
    if is_named:
        saving = found["ddp-every-pass"].saving
        assert saving is not None
        assert saving.saved.low < 0.03 < saving.saved.high


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
    assert cause.sentence.startswith("8 all_reduce calls per step (4 bytes on average)")
    # The fix removes seven calls of 1 ms, each with 0.5 ms of work, from a step of 45 ms.
    assert saved(cause) == pytest.approx(7 * 1.5 / 45, abs=1e-3)


def test_the_line_of_the_calls_is_named_if_stacks_of_some_were_recorded() -> None:
    def body(script: Script, step: int) -> None:
        metrics(8)(script, step)
        if step == 0:
            script.rank.stacks[1] = ("/usr/site-packages/torch/c10d.py:9 f", "/job/train.py:40 log")
            script.rank.stack(op_id=2, number=1)

    cause = causes_of(body)["scalars-one-by-one"]
    assert cause.line == "/job/train.py:40 log"
    assert "at train.py:40 in log" in cause.sentence


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
    """torch sends the sizes (Long) and then the bytes (Byte) of pickled objects."""
    trained(script)
    script.call("all_gather", 8, 1.0, "Long")
    script.work(0.5)
    script.call("all_gather", 4096, 2.0, "Byte")
    script.work(0.5)


def noted(script: Script, key: str, ms: float, is_noted: bool) -> None:
    begin = script.now_ms
    script.work(ms)
    if is_noted:
        script.note(key, begin)


@pytest.mark.parametrize("noted_steps", [12, 5])
def test_pickled_objects_are_named_with_the_time_of_pickling(noted_steps: int) -> None:
    def body(script: Script, step: int) -> None:
        trained(script)
        noted(script, "object_pickles", 3.0, step < noted_steps)
        script.call("all_gather", 8, 1.0, "Long")
        script.work(0.5)
        script.call("all_gather", 4096, 2.0, "Byte")
        noted(script, "object_unpickles", 4.0, step < noted_steps)
        script.work(0.5)

    found = causes_of(body)
    assert list(found) == ["pickled-objects"]
    cause = found["pickled-objects"]
    assert "(all_gather_object)" in cause.sentence
    assert "10.5 ms per step, pickling included" in cause.sentence
    assert cause.share == pytest.approx(10.5 / 44, abs=1e-3)
    # From 44 ms, the fix removes 7 ms of pickling, 0.5 ms of work and 2 ms for the bytes.
    assert saved(cause) == pytest.approx(9.5 / 44, abs=1e-3)
    assert "torch.tensor(YOUR_NUMBERS)" in cause.fix


TORCH = "/usr/lib/python3/site-packages/torch"
OBJECT_FRAMES = (
    f"{TORCH}/distributed/distributed_c10d.py:4280 all_gather",
    f"{TORCH}/distributed/c10d_logger.py:83 wrapper",
    f"{TORCH}/distributed/distributed_c10d.py:3631 all_gather_object",
    f"{TORCH}/distributed/c10d_logger.py:83 wrapper",
)
OF_SAVE = (
    f"{TORCH}/distributed/checkpoint/utils.py:197 reduce_scatter",
    f"{TORCH}/distributed/checkpoint/state_dict_saver.py:196 save",
    f"{TORCH}/distributed/checkpoint/logger.py:90 wrapper",
)
OF_STATE = (f"{TORCH}/distributed/fsdp/_optim_utils.py:1500 _all_gather_optim_state",)


def objects_through(frames: tuple[str, ...], every: int, script: Script, step: int) -> None:
    trained(script)
    if step % every:
        return
    noted(script, "object_pickles", 1.0, True)
    stack = (*OBJECT_FRAMES, *frames, "/job/train.py:30 main")
    script.call("all_gather", 8, 1.0, "Long", stack=stack)
    script.call("all_gather", 100_000, 8.0, "Byte", stack=stack)
    noted(script, "object_unpickles", 1.0, True)


def test_plans_of_a_checkpoint_are_not_called_objects_of_the_script() -> None:
    found = causes_of(partial(objects_through, OF_SAVE, 4), steps=41)
    assert list(found) == ["pickled-objects"]
    cause = found["pickled-objects"]
    assert cause.sentence.startswith("torch.distributed.checkpoint at train.py:30 in main pickles")
    assert "every 4 steps" in cause.sentence
    assert "dcp.save(YOUR_STATE, checkpoint_id=YOUR_PATH)" in cause.fix
    assert "all_gather_object" not in cause.sentence + cause.fix
    # Every fourth step takes 11 ms more than the usual 33 ms.
    assert saved(cause) == pytest.approx(11 / (4 * 33 + 11), abs=5e-3)


@pytest.mark.parametrize("keeps", [True, False])
def test_who_keeps_the_plans_of_checkpoints_is_not_told_to_keep_them(
    tmp_path: Path, keeps: bool
) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"planner = dcp.DefaultSavePlanner(enable_plan_caching={keeps})\n")
    os.utime(train, (0, 0))  # the script has not changed since the run
    body = partial(objects_through, OF_SAVE, 4)
    cause = causes_of(body, steps=41, script_path=str(train))["pickled-objects"]
    assert "pickles and exchanges lists of what each rank writes, every 4 steps" in cause.sentence
    assert "plan" not in cause.sentence
    assert ("enable_plan_caching" not in cause.fix) == keeps
    assert "if YOUR_STEP % 1000 == 0:" in cause.fix


def test_objects_that_torch_exchanges_for_the_script_are_said_to_be_of_torch() -> None:
    cause = causes_of(partial(objects_through, OF_STATE, 4), steps=41)["pickled-objects"]
    assert "(all_gather_object, by torch's distributed/fsdp/_optim_utils.py)" in cause.sentence
    assert cause.fix.startswith("if YOUR_STEP % 100 == 0:")
    assert "all_gather_object" not in cause.fix
    assert saved(cause) > 0.03


def test_objects_that_the_script_exchanges_are_its_own_beside_checkpoints() -> None:
    def body(script: Script, step: int) -> None:
        objects_through((), 1, script, step)
        objects_through(OF_SAVE, 4, script, step)

    cause = causes_of(body, steps=41)["pickled-objects"]
    assert "(all_gather_object)" in cause.sentence
    assert "checkpoint" not in cause.sentence + cause.fix


def test_nothing_is_predicted_for_objects_whose_pickling_was_not_recorded() -> None:
    cause = causes_of(objects)["pickled-objects"]
    assert "3.5 ms per step, pickling not included" in cause.sentence
    assert cause.saving is None
    assert math.isnan(cause.share)
    assert cause.wins == ""


def test_bytes_without_sizes_are_no_objects() -> None:
    def body(script: Script, step: int) -> None:
        trained(script)
        script.call("all_gather", 4096, 3.0, "Byte")

    assert causes_of(body) == {}


def gathered(every: int, size: int, ms: float, forwards: int = 0):  # type: ignore[no-untyped-def]
    def body(script: Script, step: int) -> None:
        trained(script)
        if step % every == 0:
            for _ in range(forwards):
                script.forward(1.0)
            noted(script, "object_pickles", 2.0, True)
            script.call("all_gather", 8, 1.0, "Long")
            script.call("all_gather", size, ms - 1.0, "Byte")
            noted(script, "object_unpickles", 1.0, True)

    return body


def test_objects_of_every_fifth_step_are_named_with_what_fewer_exchanges_win() -> None:
    cause = causes_of(gathered(5, 10_000, 12.0), steps=41)["pickled-objects"]
    assert "exchanged every 5 steps (all_gather_object)" in cause.sentence
    assert "YOUR_STEP % 100 == 0" in cause.fix
    # Every fifth step takes 15 ms more than the usual 33 ms.
    assert saved(cause) == pytest.approx(3 / 36, abs=3e-3)


@pytest.mark.parametrize(("every", "often"), [(1, "in every step"), (2, "every 2 steps")])
def test_how_often_objects_are_exchanged_is_counted(every: int, often: str) -> None:
    body = gathered(every, 10_000, 12.0)
    cause = causes_of(lambda script, step: body(script, step + 1), steps=40)["pickled-objects"]
    assert f"exchanged {often} (all_gather_object)" in cause.sentence


def test_objects_of_an_evaluation_every_few_steps_are_not_named() -> None:
    assert causes_of(gathered(5, 10_000, 30.0, forwards=3), steps=61) == {}


@pytest.mark.parametrize(
    ("every", "steps", "ms"), [(5, 41, 0.5 + 1.0), (10, 41, 60.0), (5, 12, 12.0)]
)
def test_objects_gathered_now_and_then_are_not_named(every: int, steps: int, ms: float) -> None:
    assert causes_of(gathered(every, 10_000, ms), steps=steps) == {}


def test_barriers_in_the_loop_are_named() -> None:
    def body(script: Script, step: int) -> None:
        trained(script)
        script.call("barrier", 0, 3.0)

    found = causes_of(body)
    assert list(found) == ["barrier-each-step"]
    assert "1 barrier per step, for 3 ms" in found["barrier-each-step"].sentence
    assert saved(found["barrier-each-step"]) == pytest.approx(3 / 36, abs=1e-3)


def test_barriers_on_several_lines_are_named_by_their_lines() -> None:
    assert at_lines(["/a/train.py:17 <module>"]) == " at train.py:17"
    assert at_lines(["/a/train.py:17 main", "/a/train.py:18 main"]) == (
        " at train.py:17 and train.py:18"
    )
    many = [f"/a/train.py:{line} main" for line in range(5)]
    assert at_lines(many) == " at train.py:0, train.py:1, train.py:2 and 2 more lines"
    assert at_lines([]) == ""


def test_a_barrier_now_and_then_is_usual() -> None:
    def body(script: Script, step: int) -> None:
        trained(script)
        if step % 4 == 3:
            script.call("barrier", 0, 20.0)

    assert "barrier-each-step" not in causes_of(body)


def gradients(count: int, size: int):  # type: ignore[no-untyped-def]
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0)
        for place in range(count):
            script.call(size=size + 4 * place, ms=1.0)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def parameters(size: int) -> dict[str, object]:
    none = {"sharded": False, "ddp_bytes": 0, "ignored_bytes": 0, "other_libraries": []}
    return {"parameter_bytes": size, **none}


def test_gradients_that_are_averaged_one_by_one_are_named() -> None:
    found = causes_of(gradients(10, 40_000), trained=parameters(400_000), models=0)
    assert list(found) == ["tensors-one-by-one"]
    cause = found["tensors-one-by-one"]
    assert cause.sentence.startswith("The gradients are averaged one by one: 10 all_reduce calls")
    assert cause.saving is None
    assert cause.share == pytest.approx(9 / 41, abs=1e-3)


@pytest.mark.parametrize("updates_are_seen", [True, False])
def test_parameters_that_are_averaged_one_by_one_are_not_called_gradients(
    updates_are_seen: bool,
) -> None:
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0)
        script.work(1.0, Phase.OPTIMIZER if updates_are_seen else Phase.OTHER)
        for place in range(10):
            script.call(size=40_000 + 4 * place, ms=1.0)

    cause = causes_of(body, trained=parameters(400_000), models=0)["tensors-one-by-one"]
    assert cause.sentence.startswith(
        "Tensors that together are as large as the model are all-reduced one by one: 10 "
    )
    assert "torch.distributed.all_reduce(flat)" in cause.fix
    assert "grad" not in cause.fix


def test_tensors_that_are_broadcast_one_by_one_are_not_called_gradients() -> None:
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0)
        for place in range(10):
            script.call("broadcast", size=40_000 + 4 * place, ms=1.0)
        script.work(1.0, Phase.OPTIMIZER)

    found = causes_of(body, trained=parameters(400_000), models=0)
    cause = found["tensors-one-by-one"]
    assert cause.sentence.startswith(
        "Tensors that together are as large as the model are broadcast one by one: 10 "
    )
    assert "torch.distributed.broadcast(flat, src=0)" in cause.fix
    assert "grad" not in cause.fix


def bursts_of(ranks_calls: int, op: str, **fields: Any):  # type: ignore[no-untyped-def]
    def body(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0)
        for place in range(ranks_calls):
            own = {name: value(place) for name, value in fields.items()}
            script.call(op, size=40_000 + 4 * place, ms=1.0, **own)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def test_tensors_of_several_owners_are_not_joined_into_one_broadcast() -> None:
    found = causes_of(
        bursts_of(12, "broadcast", aux=lambda place: place // 6),
        trained=parameters(480_000),
        models=0,
    )
    fix = found["tensors-one-by-one"].fix
    assert " and one root" in fix
    assert "torch.distributed.broadcast(flat, src=YOUR_ROOT)" in fix


def test_a_joined_call_reduces_as_the_calls_do() -> None:
    averaged = bursts_of(10, "all_reduce", reduce_op=lambda _: REDUCE_OPS.index("avg"))
    found = causes_of(averaged, trained=parameters(400_000), models=0)
    fix = found["tensors-one-by-one"].fix
    assert "torch.distributed.all_reduce(flat, op=torch.distributed.ReduceOp.AVG)" in fix
    assert "get_world_size" not in fix


def test_large_tensors_are_no_small_ones() -> None:
    assert "tensors-one-by-one" not in causes_of(gradients(10, 4 * MB), models=0)


SEARCHED = {
    "find_unused_parameters": 1,
    "most_unused_parameter_size": 0,
    "num_parameter_tensors": 100,
}


def searched(script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0}, marks={400: 1.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_a_search_for_unused_parameters_without_any_is_named() -> None:
    found = causes_of(searched, log=SEARCHED)
    assert list(found) == ["ddp-unused-parameters"]
    assert saved(found["ddp-unused-parameters"]) == pytest.approx(1 / 34, abs=1e-3)


@pytest.mark.parametrize(
    "log",
    [
        {"most_unused_parameter_size": 400},
        {"find_unused_parameters": 0},
        {"static_graph": 1},
        {"most_unused_parameter_size": None},
    ],
)
def test_a_search_that_finds_something_is_right(log: dict[str, int | None]) -> None:
    assert causes_of(searched, log={**SEARCHED, **log}) == {}


def small_buckets(script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {100_000 + 4 * place: 1.0 for place in range(12)})
    script.work(1.0, Phase.OPTIMIZER)


def test_small_buckets_are_named_if_the_cap_is_set() -> None:
    found = causes_of(small_buckets, log={"bucket_cap_bytes": 131_072})
    assert list(found) == ["ddp-small-buckets"]
    assert "12 buckets per step" in found["ddp-small-buckets"].sentence
    assert "bucket_cap_mb=0.125)" in found["ddp-small-buckets"].sentence
    assert "would make 2 buckets" in found["ddp-small-buckets"].sentence


def test_the_default_cap_makes_buckets_in_each_pass() -> None:
    def body(script: Script, step: int) -> None:
        for _ in range(2):
            script.forward(10.0)
            script.backward(20.0, {100_000 + 4 * place: 1.0 for place in range(12)})
        script.work(1.0, Phase.OPTIMIZER)

    sentence = causes_of(body, log={"bucket_cap_bytes": 131_072})["ddp-small-buckets"].sentence
    assert "24 buckets per step" in sentence
    assert "would make 4 buckets" in sentence


@pytest.mark.parametrize("cap", [26_214_400, None])
def test_buckets_of_the_default_cap_are_usual(cap: int | None) -> None:
    assert causes_of(small_buckets, log={"bucket_cap_bytes": cap}) == {}


def embedded(script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {MB: 0.5, 60 * MB: 8.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_a_huge_embedding_that_is_ready_last_is_named() -> None:
    sizes = {"parameter_bytes": [60 * MB, 500_000, 500_000], "sparse_modules": 0}
    found = causes_of(embedded, log=sizes)
    assert list(found) == ["late-embedding"]
    assert found["late-embedding"].share == pytest.approx(8 / 39.5, abs=0.02)
    assert causes_of(embedded, log={**sizes, "parameter_bytes": [20 * MB] * 3}) == {}
    small = causes_of(embedded, log={**sizes, "parameter_bytes": [60_000, 500, 500]})
    assert "late-embedding" not in small


def alone(ms: float, every: int, forwards: int = 0):  # type: ignore[no-untyped-def]
    def body(script: Script, step: int) -> None:
        if script.rank.rank == 0 and step % every == every - 1:
            for _ in range(forwards):
                script.forward(ms / forwards)
            if not forwards:
                script.work(ms)
        script.forward(10.0)
        script.backward(20.0)
        script.meet(2.0)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def test_a_rank_that_works_alone_now_and_then_is_named() -> None:
    found = causes_of(alone(60.0, 5), steps=31, models=0)
    assert list(found) == ["rank-alone"]
    cause = found["rank-alone"]
    assert cause.sentence.startswith("Rank 0 works alone")
    assert "an evaluation) every 5 steps" in cause.sentence
    assert "writing it in the background saves up to 26.7 %" in cause.sentence
    assert "async_save" in cause.fix
    assert "{YOUR_FOLDER}/{YOUR_STEP}" in cause.fix, "a save over another leaves a mixture"
    # Six of 30 steps take 60 ms more than 33 ms, or 30 ms more if both ranks share the work.
    assert saved(cause) == pytest.approx(6 * 30 / (30 * 33 + 6 * 60), abs=5e-3)


@pytest.mark.parametrize(("also", "is_checkpoint"), [("", True), ("    model.eval()\n", False)])
def test_a_checkpoint_is_told_by_the_script_and_written_in_the_background(
    also: str, is_checkpoint: bool, tmp_path: Path
) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"for step in range(40):\n{also}    torch.save(model.state_dict(), 'x')\n")
    os.utime(train, (0, 0))
    found = causes_of(alone(60.0, 5), steps=31, models=0, script_path=str(train))
    cause = found["rank-alone"]
    told = "Rank 0 works alone (the script's loop saves a checkpoint) every 5 steps"
    assert (told in cause.sentence) == is_checkpoint
    assert ("saves more than dividing the work over the ranks" in cause.sentence) == is_checkpoint
    won = 6 * (60 if is_checkpoint else 30)
    assert saved(cause) == pytest.approx(won / (30 * 33 + 6 * 60), abs=5e-3)


@pytest.mark.parametrize(("ms", "is_checkpoint"), [(55.0, True), (5.0, False)])
def test_a_checkpoint_is_told_by_the_time_in_which_the_rank_saved(
    ms: float, is_checkpoint: bool, tmp_path: Path
) -> None:
    train = tmp_path / "train.py"
    train.write_text("for step in range(40):\n    torch.save(model.state_dict(), 'x')\n")
    os.utime(train, (0, 0))

    def body(script: Script, step: int) -> None:
        begin_ms = script.now_ms
        if script.rank.rank == 0:
            script.now_ms += ms
            script.note("saves", begin_ms)
            script.now_ms = begin_ms
        alone(60.0, 5)(script, step)

    found = causes_of(body, steps=31, models=0, script_path=str(train))
    sentence = found["rank-alone"].sentence
    assert ("Rank 0 works alone (in torch.save) every 5 steps" in sentence) == is_checkpoint
    assert "loop saves a checkpoint" not in sentence
    won = 6 * (60 if is_checkpoint else 30)
    assert saved(found["rank-alone"]) == pytest.approx(won / (30 * 33 + 6 * 60), abs=5e-3)


@pytest.mark.parametrize(
    ("line", "is_checkpoint"),
    [
        ("image.save('samples.png')", False),
        ("figures[0].save(folder)", False),
        ("manager.save({'model': model.state_dict()})", True),
        ("self.fabric.save('x', state)", True),
        ("engine.save_checkpoint('x')", True),
    ],
)
def test_pictures_that_a_rank_saves_are_no_checkpoints(
    line: str, is_checkpoint: bool, tmp_path: Path
) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"for step in range(40):\n    {line}\n")
    os.utime(train, (0, 0))
    found = causes_of(alone(60.0, 5), steps=31, models=0, script_path=str(train))
    assert ("loop saves a checkpoint" in found["rank-alone"].sentence) == is_checkpoint


@pytest.mark.parametrize(
    ("loop", "prepares"),
    [
        ("    order = shuffled(data)\n    loss.backward()\n", True),
        ("    loss.backward()\n    write_checkpoint(model)\n", False),
        ("    loss.backward()\n    torch.save(model.state_dict(), 'x')\n", False),
        ("    trainer.fit(model)\n", False),  # a library's loop may save
        ("    loss.backward()\n    file.write(pickle.dumps(model))\n", False),
        (
            "    loss.backward()\n    import parts.helpers as helpers\n    helpers.done(model)\n",
            False,
        ),
        ("    loss.backward()\n    from parts import helpers\n    helpers.done(model)\n", False),
        ("    loss.backward()\n    from .parts.helpers import done\n    done(model)\n", False),
        ("    loss.backward()\n    import absent\n    absent.done(model)\n", True),
    ],
)
def test_no_checkpoint_is_told_of_if_the_script_writes_none(
    loop: str, prepares: bool, tmp_path: Path
) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"for step in range(40):\n{loop}")
    os.utime(train, (0, 0))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "helpers.py").write_text("")
    found = causes_of(alone(60.0, 5), steps=31, models=0, script_path=str(train))
    cause = found["rank-alone"]
    assert ("checkpoint" not in cause.sentence) == prepares
    assert ("async_save" not in cause.fix) == prepares
    assert ("part = YOUR_ITEMS[dist.get_rank()" in cause.fix) == prepares


def test_a_rank_that_evaluates_alone_is_told_by_its_forward_passes() -> None:
    cause = causes_of(alone(60.0, 5, forwards=6), steps=31, models=0)["rank-alone"]
    assert "Rank 0 evaluates alone (6 more forward passes)" in cause.sentence
    assert "DistributedSampler" in cause.fix
    assert "background" not in cause.sentence
    assert saved(cause) == pytest.approx(6 * 30 / (30 * 33 + 6 * 60), abs=5e-3)


def test_an_evaluation_of_all_ranks_is_not_alone_though_one_takes_longer() -> None:
    def body(script: Script, step: int) -> None:
        if step % 5 == 4:
            script.work(90.0 if script.rank.rank == 0 else 60.0)
        script.forward(10.0)
        script.backward(20.0)
        script.meet(2.0)
        script.work(1.0, Phase.OPTIMIZER)

    assert causes_of(body, steps=31, models=0) == {}


def test_hiccups_of_a_few_ms_are_not_called_work_alone() -> None:
    def body(script: Script, step: int) -> None:
        if script.rank.rank == 0 and step % 5 == 4:
            script.work(3.0)
        script.forward(1.0)
        script.backward(2.0)
        script.meet(0.5)

    assert causes_of(body, steps=31, models=0) == {}


def test_a_slow_rank_is_not_called_alone() -> None:
    assert "rank-alone" not in causes_of(alone(20.0, 1), steps=31, models=0)


def test_a_rank_that_is_slow_in_one_series_of_steps_is_not_called_alone() -> None:
    def body(script: Script, step: int) -> None:
        script.forward(30.0 if script.rank.rank == 0 and 10 <= step < 20 else 10.0)
        script.backward(20.0)
        script.meet(2.0)

    assert causes_of(body, steps=41, models=0) == {}


def in_turns(ms: float, every: int):  # type: ignore[no-untyped-def]
    def body(script: Script, step: int) -> None:
        if step % (2 * every) == every * script.rank.rank + 2:
            script.work(ms)
        script.forward(10.0)
        script.backward(20.0)
        script.meet(2.0)
        script.work(1.0, Phase.OPTIMIZER)

    return body


def test_ranks_that_take_turns_at_being_late_are_named() -> None:
    found = causes_of(in_turns(20.0, 3), steps=61, models=0)
    assert list(found) == ["ranks-in-turns"]
    cause = found["ranks-in-turns"]
    assert cause.sentence.startswith("Ranks 0, 1 are late in different steps. In 20 of 60 steps")
    # If both ranks work longer in the same steps, ten of 20 delays of 20 ms remain.
    assert saved(cause) == pytest.approx(200 / (60 * 33 + 400), abs=0.01)


def test_a_little_noise_in_turns_is_usual() -> None:
    assert causes_of(in_turns(2.0, 3), steps=31, models=0) == {}


def garbage(spans: list[tuple[int, int]]) -> dict[str, object]:
    begin, end = ([span[edge] for span in spans] for edge in (0, 1))
    return {"total_ns": sum(end) - sum(begin), "begin_ns": begin, "end_ns": end}


@pytest.mark.parametrize(("every", "times"), [(6, 10), (20, 3)])
def test_garbage_that_ranks_collect_in_turns_is_named(every: int, times: int) -> None:
    spans: dict[int, list[tuple[int, int]]] = {0: [], 1: []}

    def body(script: Script, step: int) -> None:
        if step % every == every // 2 * script.rank.rank + 2:
            begin = script.now_ms
            script.work(20.0)
            spans[script.rank.rank].append((int(begin * 1e6), int(script.now_ms * 1e6)))
        script.forward(10.0)
        script.backward(20.0)
        script.meet(2.0)
        script.work(1.0, Phase.OPTIMIZER)
        script.rank.metadata["garbage"] = garbage(spans[script.rank.rank])

    found = causes_of(body, steps=31, models=0)
    assert list(found) == ["garbage-in-turns"]
    sentence = found["garbage-in-turns"].sentence
    assert f"{times} times in 30 steps, for 20 ms on average" in sentence
    lost = times * 20
    assert saved(found["garbage-in-turns"]) == pytest.approx(lost / (30 * 33 + lost), abs=0.01)


@pytest.mark.parametrize("apart", [0, 3])
def test_garbage_that_ranks_collect_in_the_same_steps_is_not_in_turns(apart: int) -> None:
    spans: dict[int, list[tuple[int, int]]] = {0: [], 1: []}

    def body(script: Script, step: int) -> None:
        if step % 6 == 2 + apart * script.rank.rank:
            begin = script.now_ms
            script.work(20.0)
            spans[script.rank.rank].append((int(begin * 1e6), int(script.now_ms * 1e6)))
        script.meet(2.0)
        trained(script)
        script.rank.metadata["garbage"] = garbage(spans[script.rank.rank])

    assert ("garbage-in-turns" in causes_of(body, steps=31, models=0)) == bool(apart)


def test_a_collection_after_the_job_s_begin_is_not_in_turns() -> None:
    def body(script: Script, step: int) -> None:
        trained(script)
        if step == 2 + script.rank.rank:
            begin = script.now_ms
            script.work(300.0)
            script.rank.metadata["garbage"] = garbage(
                [(int(begin * 1e6), int(script.now_ms * 1e6))]
            )

    assert "garbage-in-turns" not in causes_of(body, meets=True)


def test_collections_that_cost_little_are_not_named() -> None:
    def body(script: Script, step: int) -> None:
        script.rank.metadata["garbage"] = garbage([(100_000_000, 102_000_000)])
        trained(script)

    assert causes_of(body) == {}


def test_small_calls_of_layers_cannot_be_joined() -> None:
    """SyncBatchNorm gathers the statistics of each layer in forward."""

    def body(script: Script, step: int) -> None:
        script.forward(10.0, *[lambda: script.call("all_gather_into_tensor", 200, 1.0)] * 12)
        script.backward(20.0, {4 * MB: 2.0})
        script.work(1.0, Phase.OPTIMIZER)

    assert list(causes_of(body)) == ["statistics-each-layer"]
