from __future__ import annotations

from typing import Any

import pytest

from commprof.analysis.collectives.calls_of_passes import (
    BACKWARD,
    DDP,
    FORWARD,
    SHARDED,
    advice,
)
from commprof.analysis.collectives.issuing_lines import shifted_since, told_apart
from commprof.analysis.collectives.kinds import call_path
from commprof.analysis.collectives.mismatches import mismatches_by_group
from commprof.trace import columns
from commprof.trace.schema import Phase
from tests.support.builders.traces import THREAD, Rank

DTYPES = ["", "Float"]
LINES = {0: "train.py:8", 1: "train.py:20"}


def remedy(first: Rank, second: Rank) -> str:
    traces = [first.trace(), second.trace()]
    (mismatch,), _ = mismatches_by_group(traces, [columns.collectives(trace) for trace in traces])
    return mismatch.remedy


def ranks(ddp_bytes: int = 0, sharded: bool = False) -> tuple[Rank, Rank]:
    trained = {
        **{"parameter_bytes": 4000, "sharded": sharded, "flat": False, "ddp_bytes": ddp_bytes},
        **{"ignored_bytes": 0, "other_libraries": []},
    }
    made = tuple(Rank(rank, 2, dtypes=DTYPES, trained=trained) for rank in range(2))
    for rank in made:
        rank.collective(1, 0, 10, 400, dtype=1)
        rank.step(0, 11)
    return made[0], made[1]


def test_a_rank_that_makes_no_backward_pass_is_told_what_it_left_out() -> None:
    first, second = ranks()
    first.collective(2, 20, 30, 4000, 7, dtype=1)
    second.collective(2, 20, 30, 4, dtype=1)
    assert remedy(first, second) == (
        "Rank 0 runs a backward pass, but rank 1 does not: rank 1 made a call of its own, left out "
        "a batch, or left a loop early. Let all ranks make such decisions together."
    )


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_rank_that_alone_runs_ddp_s_forward_pass_is_told_to_call_the_inner_model(
    has_ended: bool,
) -> None:
    first, second = ranks(ddp_bytes=4000 if has_ended else 0)
    op_id = first.collective(2, 20, 30, 1024, op="broadcast", dtype=1)
    if has_ended:
        first.phase(Phase.FORWARD, 15, 35)
    else:  # the rank was killed in its forward pass
        first.stacks = {3: ("/site-packages/torch/x.py:9 _sync_buffers", "/me/t.py:4 f")}
        first.stack(op_id, 3)
    second.collective(2, 20, 30, 0, op="barrier")
    said = remedy(first, second)
    assert said.startswith("Rank 0")
    assert "runs a forward pass of the DDP model, but rank 1 does not." in said
    assert "call model.module" in said


@pytest.mark.parametrize("in_backward", [False, True])
def test_threads_that_share_a_group_are_told_to_have_groups_of_their_own(in_backward: bool) -> None:
    first, second = ranks()
    task = 7 if in_backward else -1
    first.collective(2, 20, 30, 64, task, op="all_gather", dtype=1, thread=THREAD + 1)
    second.collective(2, 20, 30, 0, op="barrier")
    said = remedy(first, second)
    assert ("a group of its own" in said) != in_backward
    if not in_backward:
        assert said == (
            "A thread other than the training thread issued the call on rank 0, but not on rank 1. "
            "Calls of several threads in one group have no common order. Give the other thread a "
            "group of its own, made with torch.distributed.new_group()."
        )


def test_a_main_thread_that_issues_less_than_autograd_s_is_not_said_to_be_another() -> None:
    """On a device, a thread of autograd issues the buckets."""
    first, second = ranks()
    for number in range(2, 5):
        for one in (first, second):
            begin = 20 * number
            one.collective(number, begin, begin + 5, 4000, number, dtype=1, thread=THREAD + 1)
    first.collective(5, 100, 110, 4000, 5, dtype=1, thread=THREAD + 1)
    second.collective(5, 100, 110, 0, op="barrier")
    assert remedy(first, second).startswith("Rank 0 runs a backward pass, but rank 1 does not: ")


def test_a_rank_without_steps_has_no_thread_beside_the_training_thread() -> None:
    first, second = (Rank(rank, 2, dtypes=DTYPES) for rank in range(2))
    for one in (first, second):
        one.collective(1, 0, 10, 400, dtype=1)
    first.collective(2, 20, 30, 64, op="all_gather", dtype=1, thread=THREAD + 1)
    second.collective(2, 20, 30, 0, op="barrier")
    assert "thread" not in remedy(first, second)


def gathering(sharded: bool, op: str, frames: tuple[str, ...] = (), ddp_bytes: int = 0) -> str:
    first, second = ranks(ddp_bytes, sharded)
    sizes = {"bytes_in": 256, "bytes_out": 512}
    op_id = first.collective(2, 20, 30, 512, op="all_gather_into_tensor", dtype=1, **sizes)
    first.phase(Phase.FORWARD, 15, 35)
    if frames:
        first.stacks = {3: frames}
        first.stack(op_id, 3)
    second.collective(2, 20, 30, 64, op=op, dtype=1)
    return remedy(first, second)


@pytest.mark.parametrize("op", ["all_gather", "broadcast", "all_reduce"])
@pytest.mark.parametrize(
    "known",
    [
        {"sharded": True},
        {"sharded": False, "frames": ("/x/torch/distributed/fsdp/_p.py:9 unshard",)},
    ],
    ids=["by its updates", "by its frames"],
)
def test_a_rank_that_alone_gathers_a_sharded_model_is_told_what_all_must_call(
    known: dict[str, Any], op: str
) -> None:
    said = gathering(op=op, **known)
    assert "runs a forward pass, but rank 1 does not." in said
    assert "for example for a full state dict" in said
    assert "DDP" not in said


@pytest.mark.parametrize(
    ("function", "is_told"), [("_pre_forward", True), ("_state_dict_hook", False)]
)
def test_a_rank_that_was_killed_in_fsdp_s_forward_pass_is_told_so(
    function: str, is_told: bool
) -> None:
    """The killed rank's phase has no end, so only the frames show the forward pass."""
    first, second = ranks(sharded=True)
    first.stacks = {
        3: (f"/site-packages/torch/distributed/fsdp/_s.py:9 {function}", "/me/t.py:4 f")
    }
    first.stack(first.collective(2, 20, 30, 512, op="all_gather", dtype=1), 3)
    second.collective(2, 20, 30, 8, op="broadcast", dtype=1)
    said = remedy(first, second)
    assert ("runs a forward pass, but rank 1 does not." in said) == is_told
    assert ("for example for a full state dict" in said) == is_told


@pytest.mark.parametrize("ddp_bytes", [0, 4000], ids=["one rank's model", "DDP"])
def test_a_layer_that_communicates_is_not_called_a_sharded_model(ddp_bytes: int) -> None:
    said = gathering(sharded=False, op="all_reduce", ddp_bytes=ddp_bytes)
    assert said == (
        "Rank 0 runs a forward pass, but rank 1 does not. Let all ranks run this pass, or let no "
        "rank run it. The pass makes a call that all ranks of the group must make. SyncBatchNorm "
        "and mixtures of experts make such calls."
    )


def test_a_script_s_own_broadcast_in_forward_is_not_ddp_s() -> None:
    first, second = ranks(ddp_bytes=4000)
    first.stacks = {3: ("/site-packages/torch/x.py:9 broadcast", "/me/model.py:4 forward")}
    first.stack(first.collective(2, 20, 30, 1024, op="broadcast", dtype=1), 3)
    first.phase(Phase.FORWARD, 15, 35)
    second.collective(2, 20, 30, 0, op="barrier")
    assert "DDP" not in remedy(first, second)


@pytest.mark.parametrize(
    "passes",
    [
        {0: "", 1: ""},
        {0: FORWARD, 1: FORWARD},
        {0: FORWARD, 1: BACKWARD},
        {},  # the watchdog does not look up passes
    ],
)
def test_other_mismatches_get_no_advice_on_passes(passes: dict[int, str]) -> None:
    assert advice(passes, LINES, DDP) == ""


def test_ranks_in_different_parts_of_a_sharded_model_are_told_to_run_all_parts() -> None:
    passes = dict.fromkeys(range(3), FORWARD)
    lines = {0: "moe.py:16", 1: "moe.py:17", 2: "moe.py:16"}
    assert advice(passes, lines, SHARDED) == (
        "Ranks run different parts of sharded models: rank 1 at moe.py:17 and ranks 0, 2 at "
        "moe.py:16. All ranks must run the same parts in the same order. If only some ranks need a "
        "part, let the other ranks run the part with zeros."
    )
    assert advice(passes, lines, "") == ""
    assert advice(passes, dict.fromkeys(range(3), "moe.py:16"), SHARDED) == ""
    assert advice(passes, {0: "moe.py:16", 1: "moe.py:17"}, SHARDED) == ""


def test_lines_and_several_ranks_are_said_in_the_advice() -> None:
    passes = {0: BACKWARD, 1: "", 2: BACKWARD, 3: ""}
    lines = {0: "a.py:1", 2: "a.py:1", 1: "a.py:5", 3: "a.py:6"}
    assert advice(passes, lines, library="") == (
        "Ranks 0, 2, at a.py:1, run a backward pass, but ranks 1, 3 do not: ranks 1, 3 made a call "
        "of their own, left out a batch, or left a loop early. Let all ranks make such decisions "
        "together."
    )


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([1], "rank 1 made a call of its own, left out a batch, or left a loop early"),
        ([0, 2], "ranks 0, 2 left out a call of the other ranks, or run an extra pass"),
        ([], "rank 1 made a call of its own, left out a batch, or left a loop early"),
    ],
)
def test_the_rank_that_differs_is_told_what_it_did(told: list[int], why: str) -> None:
    passes = {0: BACKWARD, 1: "", 2: BACKWARD}
    assert advice(passes, {}, "", told) == (
        f"Ranks 0, 2 run a backward pass, but rank 1 does not: {why}. Let all ranks make such "
        "decisions together."
    )
    assert advice({0: "", 1: BACKWARD, 2: ""}, {}, "", [1]) == (
        "Rank 1 runs a backward pass, but ranks 0, 2 do not: rank 1 left out a call of the "
        "other ranks, or runs an extra pass. Let all ranks make such decisions together."
    )


HELPER = "/me/gather.py:5 gather"
TORCH = "/x/site-packages/torch/distributed/c10d.py:9 all_gather"


def test_a_path_holds_the_script_s_own_lines() -> None:
    frames = (TORCH, HELPER, "/me/train.py:20 main")
    assert call_path(frames) == "gather.py:5 < train.py:20"
    assert call_path(()) == ""


def test_ranks_at_one_line_of_a_helper_are_told_apart_by_the_line_that_calls_it() -> None:
    def by(line: int) -> str:
        return call_path((TORCH, HELPER, f"/me/train.py:{line} main"))

    lines = {1: {0: by(10), 1: by(10)}, 2: {0: by(20), 1: by(30)}}
    found = shifted_since(lines, 3)
    assert found is not None
    seq, paths = found
    assert seq == 2
    assert told_apart(paths) == (
        (0, "gather.py:5, called at train.py:20"),
        (1, "gather.py:5, called at train.py:30"),
    )
    assert told_apart(((0, "a.py:1 < t.py:2"), (1, "b.py:1 < t.py:3"))) == (
        (0, "a.py:1"),
        (1, "b.py:1"),
    )


def test_a_call_that_one_rank_leaves_out_is_found_behind_a_common_helper() -> None:
    made = Rank(0, 2, dtypes=DTYPES), Rank(1, 2, dtypes=DTYPES)
    for rank, lines in zip(made, ((24, 25, 26), (24, 26, 27)), strict=True):
        for seq, line in enumerate(lines, 1):
            rank.stacks[line] = (TORCH, HELPER, f"/me/train.py:{line} main")
            size = 8 if line == 27 else 16
            rank.stack(rank.collective(seq, 10 * seq, 10 * seq + 5, size, dtype=1), line)
        rank.step(0, 50)
    traces = [rank.trace() for rank in made]
    (mismatch,), _ = mismatches_by_group(traces, [columns.collectives(trace) for trace in traces])
    assert mismatch.seq == 3
    assert (
        "collective 2 agrees only in operation and size: rank 1 issued it at gather.py:5, called "
        "at train.py:26, rank 0 issued it at gather.py:5, called at train.py:25"
    ) in mismatch.sentence
    assert mismatch.remedy == (
        "Some ranks left out or added a call at collective 2. Let all ranks make the same call. "
        "The ranks issued this collective at different lines: rank 1 at gather.py:5, called at "
        "train.py:26 and rank 0 at gather.py:5, called at train.py:25."
    )
