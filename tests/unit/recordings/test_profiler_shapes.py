"""Traces of other versions, libraries, devices and layouts than those of the recordings at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.world import WorldResult
from commprof.recordings.profiler import read_recording
from commprof.trace import columns
from commprof.trace.schema import Phase
from tests.support.builders.profiler_traces import (
    Event,
    all_reduce,
    annotation,
    document,
    kernel,
    rank_events,
)

Change = Callable[[list[Event]], list[Event]]


def world_of(path: Path) -> WorldResult:
    return analyse_in_detail(path)[0].worlds[0]


def unmarked(rank: int, ahead_us: float = 0.0) -> str:
    """A trace that does not say its rank."""
    whole = json.loads(document(rank_events(rank, ahead_us), rank))
    del whole["distributedInfo"]
    return json.dumps(whole)


def written(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def of_torch_1_9(events: list[Event]) -> list[Event]:
    """Other categories, and nothing of a collective but its kernel's name."""
    for event in events:
        event["cat"] = {"kernel": "Kernel", "user_annotation": "Operator"}[event["cat"]]
        if "AllReduce" in event["name"]:
            event["name"] = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
            event["args"] = {"device": 0, "stream": 20, "correlation": 5}
    return events


def in_ns(events: list[Event]) -> list[Event]:
    for event in events:
        event["ts"] = int(1_700_000_000_000_000_000 + 1000 * event["ts"])
        event["dur"] = round(1000 * event["dur"])
    return events


def marked_twice(events: list[Event]) -> list[Event]:
    """By a second thread too."""
    return events + [{**event, "tid": 9} for event in events if event["name"][:8] == "Profiler"]


@pytest.mark.parametrize(
    "change", [list, of_torch_1_9, in_ns, marked_twice, lambda events: events[::-1]]
)
@pytest.mark.parametrize("alone", [False, True])
def test_events_in_other_words_and_units(tmp_path: Path, change: Change, alone: bool) -> None:
    """Whole documents, and arrays of events alone."""
    texts = {}
    for rank in (0, 1):
        events = change(rank_events(rank))
        texts[f"rank{rank}.json"] = json.dumps(events) if alone else document(events, rank)
    world = world_of(written(tmp_path / "job", texts))
    assert (world.world_size, world.steps, world.collectives[0].op) == (2, 4, "all_reduce")
    assert world.parts.exposed_ms == pytest.approx(0.175, abs=1e-3)
    assert world.parts.wait_ms == pytest.approx(0.075, abs=1e-3)


@pytest.mark.parametrize(
    "names",
    [
        ("node-2/rank0.json", "node-2/rank1.json", "node-10/rank0.json", "node-10/rank1.json"),
        ("a_rank0.json", "a_rank1.json", "b_rank0.json", "b_rank1.json"),
    ],
)
def test_ranks_of_several_hosts(tmp_path: Path, names: tuple[str, ...]) -> None:
    texts = {name: unmarked(place % 2) for place, name in enumerate(names)}
    found = read_recording(written(tmp_path / "job", texts))
    assert found is not None
    assert [str(trace.path) for trace in found.traces.values()] == list(names)
    assert found.world_size == 4
    assert any("several hosts name the same ranks" in text for text in found.problems)


def test_of_a_rank_that_was_recorded_twice_the_last_counts(tmp_path: Path) -> None:
    texts = {
        f"step_{cycle}/rank{rank}.json": unmarked(rank, ahead_us=1e7 * cycle)
        for cycle in (1, 2)
        for rank in (0, 1)
    }
    found = read_recording(written(tmp_path / "job", texts))
    assert found is not None
    assert [str(trace.path) for trace in found.traces.values()] == [
        *("step_2/rank0.json", "step_2/rank1.json")
    ]
    assert any(text.startswith("ranks 0, 1 have several recordings") for text in found.problems)


def mesh(rank: int) -> list[Event]:
    """Two groups of two ranks in each dimension, all four under two names."""
    row, column = divmod(rank, 2)
    events = []
    for step in range(6):
        base = 1000.0 * step
        events += [annotation(f"ProfilerStep#{step}", base, base + 1000)]
        for name, ranks, begin in (
            ("tp", [2 * row, 2 * row + 1], 400),
            ("dp", [column, column + 2], 600),
        ):
            event = all_reduce(base + begin + 20 * rank, base + begin + 100, step)
            event["args"] |= {"Process Group Name": name, "Process Group Ranks": str(ranks)}
            events.append(event)
    return events


def test_groups_of_one_name_and_other_ranks_are_told_apart(tmp_path: Path) -> None:
    texts = {f"rank{rank}.json": document(mesh(rank), rank, 4) for rank in range(4)}
    world = world_of(written(tmp_path / "job", texts))
    assert {row.group for row in world.collectives} == {
        *("tp (ranks 0, 1)", "tp (ranks 2, 3)", "dp (ranks 0, 2)", "dp (ranks 1, 3)")
    }
    # The first of each pair waits 20 µs in its row, and 40 in its column.
    assert [rank.parts.wait_ms for rank in world.ranks] == pytest.approx([0.06, 0.04, 0.02, 0])


@pytest.mark.parametrize(
    ("kernel_name", "range_name", "launch", "category"),
    [
        (
            "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
            *("nccl:all_reduce", "hipExtLaunchKernel", "cuda_runtime"),
        ),
        (
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
            *("nccl:_reduce_scatter_base", "cuLaunchKernelEx", "cuda_driver"),
        ),
        (
            "oneccl_allreduce_pcie(x)",
            *("xccl:all_reduce", "zeCommandListAppendLaunchKernel", "xpu_driver"),
        ),
        (
            "ncclKernel_Generic",
            *("nccl:all_reduce", "Launch", "privateuse1_runtime"),
        ),
    ],
)
def test_the_range_around_a_launch_says_what_a_kernel_is(
    tmp_path: Path, kernel_name: str, range_name: str, launch: str, category: str
) -> None:
    """By every runtime that kineto records."""
    launched = {**annotation(launch, 12, 14), "cat": category, "args": {"correlation": 7}}
    events = [
        *(annotation("ProfilerStep#1", 0, 100), annotation(range_name, 10, 20), launched),
        kernel(kernel_name, 30, 60, correlation=7),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(document(events, 0))
    (row,) = world_of(path).collectives
    assert row.op == ("reduce_scatter_tensor" if "scatter" in range_name else "all_reduce")


@pytest.mark.parametrize(
    "name",
    ["Memcpy DtoD (Device -> Device)", "CopyDeviceToDevice", "Memcpy D2D (DEVICE -> DEVICE)"],
)
def test_copies_within_a_device_hide_communication(tmp_path: Path, name: str) -> None:
    copy = {**kernel(name, 20, 50), "cat": "gpu_memcpy"}
    events = [annotation("ProfilerStep#1", 0, 100), all_reduce(10, 60, seq=1), copy]
    path = tmp_path / "rank0.json"
    path.write_text(document(events, 0))
    assert world_of(path).parts.exposed_ms == pytest.approx(0.02)


def phases_us(path: Path) -> dict[str, float]:
    """Time of each phase in the recording's only rank."""
    found = read_recording(path)
    assert found is not None
    spans = columns.phases(found.traces[0])
    return {
        Phase(code).name.lower(): float((spans.end_ns - spans.begin_ns)[spans.key == code].sum())
        / 1000
        for code in np.unique(spans.key).tolist()
    }


def work(at_us: float, correlation: int, tid: int = 1) -> list[Event]:
    """A kernel of 10 µs, launched 5 µs before."""
    launch = {**annotation("cudaLaunchKernel", at_us - 5, at_us - 4, tid), "cat": "cuda_runtime"}
    return [
        {**launch, "args": {"correlation": correlation}},
        kernel("gemm", at_us, at_us + 10, correlation=correlation),
    ]


def test_phases_of_fsdp2(tmp_path: Path) -> None:
    """Its ranges mark begins and ends of modules: the kernels in between are of no range."""
    backward = {
        **annotation("autograd::engine::evaluate_function: MmBackward0", 105, 140, tid=2),
        "cat": "cpu_op",
    }
    events = [
        *(annotation("ProfilerStep#1", 0, 300), annotation("FSDP::root_pre_forward", 5, 6)),
        *(annotation("FSDP::pre_forward (layers.0)", 7, 8), *work(20, 1)),
        *(annotation("FSDP::post_forward (layers.0)", 30, 31), *work(40, 2)),
        annotation("FSDP::post_forward", 50, 51),
        *(*work(80, 3), annotation("FSDP::pre_backward (layers.0)", 100, 101, tid=2), backward),
        # Recomputed within the backward pass.
        *(annotation("FSDP::pre_forward (layers.0)", 106, 107, tid=2), *work(120, 4, tid=2)),
        annotation("FSDP::post_forward (layers.0)", 125, 126, tid=2),
        *(annotation("Optimizer.step#AdamW.step", 190, 250), *work(200, 5)),
        all_reduce(260, 280, seq=1),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(document(events, 0))
    assert phases_us(path) == pytest.approx({"forward": 20, "backward": 10, "optimizer": 10})


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        *(("Forward 3", "forward"), ("PP:1F0", "forward"), ("## Forward ##", "forward")),
        *(("Backward 3", "backward"), ("PP:1B0", "backward"), ("PP:0W12", "backward")),
        *(("## backward ##", "backward"), ("## optimizer ##", "optimizer")),
    ],
)
def test_ranges_of_pipelines_and_of_scripts(tmp_path: Path, name: str, phase: str) -> None:
    events = [annotation("ProfilerStep#1", 0, 100), annotation(name, 5, 40), *work(20, 1)]
    path = tmp_path / "rank0.json"
    path.write_text(document([*events, all_reduce(50, 60, seq=1)], 0))
    assert phases_us(path) == {phase: 10}
