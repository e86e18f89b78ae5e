from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.world import WorldResult
from commprof.recordings.profiler import read_recording
from tests.support.builders.profiler_traces import (
    Event,
    annotation,
    document,
    kernel,
    write,
)

ELEMENTS = 1_000_000


def said(number: int, group: str = "0") -> dict[str, Any]:
    return {
        **{"Collective name": "_allgather_base", "dtype": "Float", "In msg nelems": ELEMENTS},
        **{"Out msg nelems": 2 * ELEMENTS, "Group size": 2, "Seq": number},
        **{"Process Group Name": group, "Process Group Ranks": "[0, 1]"},
    }


def launch(at_us: float, correlation: int, category: str = "cuda_runtime") -> Event:
    event = {**annotation("hipLaunchKernel", at_us, at_us + 1), "cat": category}
    return {**event, "args": {"correlation": correlation}}


def copy_engine_job(rank: int, numbered: bool, ranges: str, steps: int = 12) -> list[Event]:
    """``ranges`` says what connects an all-gather's three kernels.

    A range may lie "around" the launches, an External "id" may be shared, or "nothing" connects the
    kernels.
    """
    events: list[Event] = []
    for step in range(steps):
        at, number = 5e9 + 50_000 * step, 10 * step
        described = {} if ranges == "nothing" else {"External id": number + 5}
        around = annotation("nccl:_all_gather_base", at + 10, at + 60)
        events.append({**around, "args": {**described, "Input Dims": [[ELEMENTS]]}})
        events[-1]["args"]["Input type"] = ["float"]
        for place, (begin, end) in enumerate(((100, 120), (200, 260), (2000, 6000))):
            args = said(step) if numbered else {}
            args |= described if ranges == "id" else {}
            if ranges == "around":
                events.append(launch(at + 15 + place, number + place))
                args |= {"correlation": number + place}
            name = ("__amd_rocclr_batchMemOp.kd", "ncclDevKernel_Generic_4(x)")[not numbered]
            events.append(kernel(name, at + begin + rank, at + end, 2, **args))
        events.append(kernel("gemm", at + 7000, at + 50_000))
    return events


def job(tmp_path: Path, *ranks: list[Event]) -> Path:
    return write(tmp_path / "job", [document(events, rank) for rank, events in enumerate(ranks)])


def world_of(tmp_path: Path, *ranks: list[Event]) -> WorldResult:
    return analyse_in_detail(job(tmp_path, *ranks))[0].worlds[0]


@pytest.mark.parametrize(
    ("numbered", "ranges"),
    [(True, "around"), (True, "nothing"), (True, "id"), (False, "around"), (False, "id")],
)
def test_several_kernels_are_one_collective(tmp_path: Path, numbered: bool, ranges: str) -> None:
    world = world_of(tmp_path, *(copy_engine_job(rank, numbered, ranges) for rank in (0, 1)))
    (row,) = world.communication.collectives
    assert (row.kind.op, row.calls_per_step, row.kind.size_bytes) == (
        *("all_gather_into_tensor", 1),
        (8 * ELEMENTS, 8 * ELEMENTS),
    )
    assert world.timing.step_median_ms == pytest.approx(50.0)
    assert row.times.duration.median_ms == pytest.approx(5.9, abs=0.01)
    assert row.times.algbw_gb_per_s == pytest.approx(8 * ELEMENTS / 5.899e6, rel=1e-3)


def test_the_time_of_a_collective_is_that_of_its_kernels(tmp_path: Path) -> None:
    world = world_of(tmp_path, copy_engine_job(0, True, "around"))
    assert world.parts.exposed_ms == pytest.approx(0.02 + 0.06 + 4.0)
    assert world.parts.unphased_compute_ms == pytest.approx(43.0)
    assert world.parts.idle_ms == pytest.approx(0.08 + 1.74 + 1.0 + 0.1)
    (rank,) = world.ranks
    assert rank.kernels is not None
    assert rank.kernels.communication_ms == pytest.approx(4.08)
    assert world.parts.hidden_ms == pytest.approx(0.0)


def two_calls(first: dict[str, Any], second: dict[str, Any], one_range: bool) -> list[Event]:
    events: list[Event] = []
    for step in range(4):
        at, number = 5e9 + 1000 * step, 10 * step
        events.append(annotation(f"ProfilerStep#{step}", at, at + 1000))
        for place, args in enumerate((first, second)):
            if not (place and one_range):
                end = 30 if one_range else 15 + 10 * place
                events.append(annotation("record_param_comms", at + 10 + 10 * place, at + end))
                events[-1] |= {"cat": "cpu_op"}
            events.append(launch(at + 12 + 10 * place, number + place))
            args = {**args, "Seq": args["Seq"] + number, "correlation": number + place}
            name = "ncclDevKernel_Generic_4(x)"
            events.append(kernel(name, at + 100 + 100 * place, at + 150 + 100 * place, **args))
    return events


@pytest.mark.parametrize(
    ("first", "second", "one_range", "calls"),
    [
        (said(0), said(0), True, 1),
        (said(0), said(1), True, 2),
        (said(0), said(0, "tp"), True, 2),
        (said(0), {**said(0), "Collective name": "allreduce"}, True, 2),
        (said(0), said(0), False, 2),
        # All messages of a batch have the same number.
        ({**said(0), "Collective name": "send"}, {**said(0), "Collective name": "send"}, True, 2),
    ],
)
def test_kernels_of_different_calls_stay_apart(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], one_range: bool, calls: int
) -> None:
    world = world_of(tmp_path, two_calls(first, second, one_range))
    assert sum(row.calls for row in world.communication.collectives) == 4 * calls


@pytest.mark.parametrize("name", ["Memcpy PtoP (Device -> Device)", "Memcpy P2P"])
@pytest.mark.parametrize("in_call", [True, False])
def test_copies_between_devices_are_communication_if_c10d_launched_them(
    tmp_path: Path, name: str, in_call: bool
) -> None:
    events: list[Event] = []
    for step in range(4):
        at = 5e9 + 1000 * step
        events += [
            annotation(f"ProfilerStep#{step}", at, at + 1000),
            annotation("nccl:all_gather", at + 10, at + 30),
            launch(at + 12, 10 * step),
            kernel("ncclDevKernel_Generic_4(x)", at + 100, at + 150, 20, correlation=10 * step),
            {
                **annotation("cudaMemcpyPeerAsync", at + 20, at + 21),
                **{"cat": "cuda_runtime", "args": {"correlation": 10 * step + 1}},
            },
            {
                **kernel(name, at + 200, at + 300, 20, correlation=10 * step + in_call),
                "cat": "gpu_memcpy",
            },
        ]
        if not in_call:
            events[-1]["args"]["correlation"] = 10_000
    world = world_of(tmp_path, events)
    (row,) = world.communication.collectives
    assert (row.kind.op, row.calls) == ("all_gather", 4)
    assert world.parts.exposed_ms == pytest.approx(0.15 if in_call else 0.05)
    assert world.parts.copies_ms == pytest.approx(0.0 if in_call else 0.1)
    assert row.times.duration.median_ms == pytest.approx(0.2 if in_call else 0.05)


def replayed(rank: int, kernels: int, annotated: bool, steps: int = 12) -> list[Event]:
    """In each step of 1000 µs a CUDA graph is replayed; rank 1 arrives 20 µs late.

    torch's annotations give each replay the number of the captured call, and hold values as texts.
    """
    described = {key: str(value) for key, value in said(5).items()} if annotated else {}
    events: list[Event] = []
    for step in range(steps):
        at, number = 5e9 + 1000 * step, 100 + step
        events.append(annotation(f"ProfilerStep#{step}", at, at + 1000))
        graph = {**annotation("cudaGraphLaunch", at + 5, at + 10), "cat": "cuda_runtime"}
        events.append({**graph, "args": {"correlation": number}})
        events.append(kernel("gemm", at + 20, at + 100, correlation=number))
        for place in range(kernels):
            begin = at + 200 + 20 * rank + 100 * place
            args = {**described, "correlation": number, "graph node id": place + 1}
            name = "ncclDevKernel_AllGather_RING_LL(x)"
            events.append(kernel(name, begin, at + 260 + 100 * place, **args))
    return events


def about_graphs(folder: Path) -> str:
    recording = read_recording(folder)
    assert recording is not None
    (text,) = [text for text in recording.problems if "CUDA graphs" in text]
    return text


@pytest.mark.parametrize("kernels", [1, 2])
@pytest.mark.parametrize("has_launches", [True, False])
def test_each_replay_of_a_graph_has_collectives_of_its_own(
    tmp_path: Path, kernels: int, has_launches: bool
) -> None:
    ranks = [replayed(rank, kernels, annotated=True) for rank in (0, 1)]
    if not has_launches:
        ranks = [[event for event in events if event["cat"] != "cuda_runtime"] for events in ranks]
    folder = job(tmp_path, *ranks)
    world = analyse_in_detail(folder)[0].worlds[0]
    (row,) = world.communication.collectives
    assert (row.kind.op, row.calls_per_step) == ("all_gather_into_tensor", 1)
    assert row.kind.size_bytes == (8 * ELEMENTS, 8 * ELEMENTS)
    assert world.parts.exposed_ms == pytest.approx(0.05 * kernels)
    assert world.parts.wait_ms == pytest.approx(0.01)
    assert row.times.duration.median_ms == pytest.approx(0.05 + 0.1 * (kernels - 1))
    if has_launches:
        assert "12 times: phases of the kernels in them are not known" in about_graphs(folder)


def test_kernels_of_a_graph_tell_no_sizes_without_annotations(tmp_path: Path) -> None:
    folder = job(tmp_path, *(replayed(rank, 1, annotated=False) for rank in (0, 1)))
    world = analyse_in_detail(folder)[0].worlds[0]
    (row,) = world.communication.collectives
    assert (row.calls_per_step, row.kind.sizes_known) == (1, False)
    assert world.parts.wait_ms == pytest.approx(0.01)
    unknown = "12 times: sizes, groups and phases of the kernels in them are not known"
    assert unknown in about_graphs(folder)
