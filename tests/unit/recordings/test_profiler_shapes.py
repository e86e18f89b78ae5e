from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.world import WorldResult
from commprof.recordings.profiler import read_recording
from commprof.report.export import as_json
from commprof.trace import columns
from commprof.trace.schema import Phase
from tests.support.builders.profiler_traces import (
    Event,
    all_reduce,
    annotation,
    document,
    kernel,
    rank_events,
    write,
)

Change = Callable[[list[Event]], list[Event]]


def world_of(path: Path) -> WorldResult:
    return analyse_in_detail(path)[0].worlds[0]


def unmarked(rank: int, ahead_us: float = 0.0) -> str:
    whole = json.loads(document(rank_events(rank, ahead_us), rank))
    del whole["distributedInfo"]
    return json.dumps(whole)


def written(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def of_torch_1_9(events: list[Event]) -> list[Event]:
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
    return events + [{**event, "tid": 9} for event in events if event["name"][:8] == "Profiler"]


def in_pairs(events: list[Event]) -> list[Event]:
    pairs = [(dict(event), dict(event)) for event in events]
    for number, (begin, end) in enumerate(pairs):
        begin["ph"], end["ph"], end["ts"] = "B", "E", end["ts"] + end["dur"]
        begin["tid"] = end["tid"] = f"{begin['tid']} {number % 5}"
        del begin["dur"], end["dur"], end["cat"]
        end.pop("args", None)
    ordered = sorted(sum(pairs, ()), key=lambda event: (event["ts"], event["ph"] == "B"))
    return [*ordered, {"ph": "E", "ts": 1}, {**pairs[0][0], "tid": 77}]


def as_texts(events: list[Event]) -> list[Event]:
    return [{**e, **{key: str(e[key]) for key in ("ts", "dur", "pid", "tid")}} for e in events]


def numbers_again(events: list[Event]) -> list[Event]:
    for event in events:
        if event["name"].startswith("ProfilerStep"):
            event["name"] = f"ProfilerStep#{int(event['name'][-1]) % 2}"
    return events


@pytest.mark.parametrize(
    "change",
    [
        *(list, of_torch_1_9, in_ns, marked_twice, lambda events: events[::-1]),
        *(in_pairs, as_texts, numbers_again),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_traces_with_other_event_names_units_and_order_are_read_alike(
    tmp_path: Path, change: Change, alone: bool
) -> None:
    texts = {}
    for rank in (0, 1):
        events = change(rank_events(rank))
        texts[f"rank{rank}.json"] = json.dumps(events) if alone else document(events, rank)
    world = world_of(written(tmp_path / "job", texts))
    assert (world.world_size, world.timing.steps, world.communication.collectives[0].kind.op) == (
        2,
        4,
        "all_reduce",
    )
    assert world.parts.exposed_ms == pytest.approx(0.175, abs=1e-3)
    assert world.parts.wait_ms == pytest.approx(0.075, abs=1e-3)


@pytest.mark.parametrize(
    "names",
    [
        ("node-2/rank0.json", "node-2/rank1.json", "node-10/rank0.json", "node-10/rank1.json"),
        ("a_rank0.json", "a_rank1.json", "b_rank0.json", "b_rank1.json"),
    ],
)
def test_equal_ranks_of_several_hosts_are_renumbered(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    texts = {name: unmarked(place % 2, 3.0 * (place // 2)) for place, name in enumerate(names)}
    found = read_recording(written(tmp_path / "job", texts))
    assert found is not None
    assert [str(trace.path) for trace in found.traces.values()] == list(names)
    assert found.world_size == 4
    assert any("several hosts name the same ranks" in text for text in found.problems)


def test_the_last_of_two_recordings_of_a_rank_is_used(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("says_rank", [True, False])
@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(
    ("windows", "steps"),
    [
        ([(0, 3), (5, 8)], 6),
        ([(0, 5), (3, 8)], 8),
        ([(0, 8), (3, 5)], 8),
        ([(0, 8), (0, 5)], 8),
        ([(0, 8), (0, 8)], 8),
    ],
)
def test_several_windows_of_a_rank_are_joined(
    tmp_path: Path, windows: list[tuple[int, int]], steps: int, numbered: bool, says_rank: bool
) -> None:
    texts = {}
    for rank in (0, 1):
        for number, (first, last) in enumerate(windows):
            whole = rank_events(rank, steps=8)
            events = [e for e in whole if first <= (e["ts"] - 5e9) / 1000 < last]
            for event in events if not numbered else ():
                event.get("args", {}).pop("Seq", None)
            said = json.loads(document(events, rank))
            said["distributedInfo"] = said["distributedInfo"] if says_rank else {}
            texts[f"rank{rank}.window{number}.json"] = json.dumps(said)
    world = world_of(written(tmp_path / "job", texts))
    assert (world.world_size, world.timing.steps, world.recording.missing_ranks) == (2, steps, ())
    assert world.parts.exposed_ms == pytest.approx(0.175, abs=1e-3)
    assert world.parts.wait_ms == pytest.approx(0.075, abs=1e-3)
    assert sum(row.calls for row in world.communication.collectives) == 2 * steps


def test_windows_that_some_ranks_lack_are_left_out(tmp_path: Path) -> None:
    texts = {}
    for rank, windows in enumerate([[(0, 3), (3, 5), (6, 8)], [(0, 3), (3, 5)]]):
        for first, last in windows:
            events = [
                event
                for event in rank_events(rank, steps=8)
                if first <= (event["ts"] - 5e9) / 1000 < last
            ]
            texts[f"iteration_{last}/rank{rank}_trace.json"] = document(events, rank)
    world = world_of(written(tmp_path / "job", texts))
    assert world.timing.steps == 5
    assert world.parts.wait_ms == pytest.approx(0.075, abs=1e-3)
    assert any("of which 2 are joined" in text for text in world.recording.problems)


@pytest.mark.parametrize("numbered", [True, False])
def test_pipeline_messages_do_not_match_collectives(tmp_path: Path, numbered: bool) -> None:
    texts = {}
    for rank in range(3):
        events, counts = [], {"send": 0, "recv": 0, "allreduce": 0}
        for step in range(4):
            base = 5e9 + 1000 * step
            events += [annotation(f"ProfilerStep#{step}", base, base + 1000)]
            of_rank = [("send", 100, 150)] * (rank < 2) + [("recv", 160, 220)] * (rank > 0)
            for name, begin, end in [*of_rank, ("allreduce", 300 + 50 * rank, 500)]:
                counts[name] += 1
                event = all_reduce(base + begin, base + end, counts[name])
                event["args"] |= {"Collective name": name, "Group size": 3}
                event["args"] |= {"Process Group Ranks": "[0, 1, 2]", "Src Rank": rank - 1}
                event["args"] |= {"Dst Rank": rank + 1}
                if not numbered:
                    del event["args"]["Seq"]
                events.append(event)
        texts[f"rank{rank}.json"] = document(events, rank, 3)
    world = world_of(written(tmp_path / "job", texts))
    parts = [rank.kernels for rank in world.ranks]
    assert [each and each.wait_ms for each in parts] == pytest.approx([0.1, 0.05, 0.0])
    assert [each and each.transfer_ms for each in parts] == pytest.approx([0.1, 0.1, 0.1])
    assert [each and each.unsplit_ms for each in parts] == pytest.approx([0.05, 0.11, 0.06])
    assert world.lateness.late_rank is not None
    assert world.lateness.late_rank.rank == 2


def test_a_file_without_a_rank_gets_the_missing_rank(tmp_path: Path) -> None:
    texts = {"b.json": document(rank_events(1), 1), "a.json": unmarked(0)}
    world = world_of(written(tmp_path / "job", texts))
    assert (world.world_size, [rank.rank for rank in world.ranks]) == (2, [0, 1])


def mesh(rank: int) -> list[Event]:
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


def test_recorded_sequence_numbers_are_used_for_groups_of_some_ranks(tmp_path: Path) -> None:
    of_ranks = [mesh(rank) for rank in range(4)]
    del of_ranks[1][1:3]
    texts = {f"rank{rank}.json": document(of_ranks[rank], rank, 4) for rank in range(4)}
    found = read_recording(written(tmp_path / "job", texts))
    assert found is not None
    tables = [columns.collectives(found.traces[rank]) for rank in (0, 1)]
    tp = [table.seq[table.group == table.group[0]].tolist() for table in tables]
    assert tp == [list(range(6)), list(range(1, 6))]


def test_groups_with_the_same_name_and_different_ranks_are_separate(tmp_path: Path) -> None:
    texts = {f"rank{rank}.json": document(mesh(rank), rank, 4) for rank in range(4)}
    world = world_of(written(tmp_path / "job", texts))
    assert {row.kind.group for row in world.communication.collectives} == {
        *("tp (ranks 0, 1)", "tp (ranks 2, 3)", "dp (ranks 0, 2)", "dp (ranks 1, 3)")
    }
    # The first rank of a pair waits 20 µs in a row and 40 µs in a column.
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
def test_the_range_around_the_launch_gives_the_operation_on_any_platform(
    tmp_path: Path, kernel_name: str, range_name: str, launch: str, category: str
) -> None:
    launched = {**annotation(launch, 12, 14), "cat": category, "args": {"correlation": 7}}
    events = [
        *(annotation("ProfilerStep#1", 0, 100), annotation(range_name, 10, 20), launched),
        kernel(kernel_name, 30, 60, correlation=7),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(document(events, 0))
    (row,) = world_of(path).communication.collectives
    assert row.kind.op == ("reduce_scatter_tensor" if "scatter" in range_name else "all_reduce")


GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
SAID = {
    **{"Collective name": "_reduce_scatter_base", "dtype": "BFloat16", "Group size": 2},
    **{"In msg nelems": 800, "Out msg nelems": 400, "Process Group Name": "3", "Seq": "12"},
}
EXTERNAL = {"External id": 7, "Input Dims": [[25]], "Input type": ["float"]}
UNKNOWN: tuple[str, int | None] = ("other", None)


def on_host(name: str, begin_us: float, end_us: float, tid: int = 1, **args: object) -> Event:
    return {**annotation(name, begin_us, end_us, tid), "cat": "cpu_op", "args": args}


@pytest.mark.parametrize(
    ("kernel_name", "args", "beside", "expected"),
    [
        (GENERIC, {}, [on_host("c10d::allreduce_", 8, 30)], ("all_reduce", None)),
        (
            *(GENERIC, {"external id": 8}),
            [on_host("nccl:all_reduce", 8, 30, 5, **{**EXTERNAL, "External id": 8})],
            ("all_reduce", 100),
        ),
        (
            *(GENERIC, {}),
            [
                on_host("record_param_comms", 8, 30, **SAID),
                annotation("nccl:_reduce_scatter_base", 9, 29),
            ],
            ("reduce_scatter_tensor", 1600),
        ),
        # The range of coalesced operations does not name the operations.
        (
            *(GENERIC, {}),
            [
                on_host("c10d::allgather_into_tensor_coalesced_", 5, 40),
                *(on_host("record_param_comms", 5 + at / 10, 5.05 + at / 10) for at in range(40)),
                annotation("nccl:coalesced", 9.5, 20),
            ],
            ("all_gather_into_tensor_coalesced", None),
        ),
        (GENERIC, {"Collective name": "coalesced"}, [annotation("nccl:coalesced", 8, 20)], UNKNOWN),
        (GENERIC, {"graph node id": 3}, [], UNKNOWN),
        (GENERIC, {**SAID, "dtype": "Quarter"}, [], ("reduce_scatter_tensor", None)),
        (GENERIC, {"Collective name": "allreduce", "dtype": "Float"}, [], ("all_reduce", None)),
        # Without an operator, kineto's external id of a kernel is the number of its launch.
        (GENERIC, {"External id": 7}, [on_host("nccl:all_reduce", 1, 2, **EXTERNAL)], UNKNOWN),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", {}, [], ("all_reduce", None)),
        ("void vllm::cross_device_reduce_2stage<half, 8>(x)", {}, [], ("all_reduce", None)),
        ("allreduce_fusion_kernel_oneshot_lamport<x>", {}, [], ("all_reduce", None)),
    ],
)
def test_operation_and_size_of_a_kernel_come_from_related_events(
    tmp_path: Path,
    kernel_name: str,
    args: Event,
    beside: list[Event],
    expected: tuple[str, int | None],
) -> None:
    launched = {**annotation("cudaLaunchKernelExC", 10, 11), "cat": "cuda_runtime"}
    events = [
        *(annotation("ProfilerStep#1", 0, 100), {**launched, "args": {"correlation": 7}}, *beside),
        kernel(kernel_name, 40, 60, correlation=7, **args),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(document(events, 0))
    result = analyse_in_detail(path)[0]
    (row,) = json.loads(as_json.render(result))["runs"][0]["aggregated_metrics"]["collectives"]
    sizes = row["size_bytes"]
    assert (row["op"], sizes and sizes[0]) == expected
    assert row["total_bytes"] == expected[1]
    assert result.worlds[0].parts.exposed_ms == pytest.approx(0.02)


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
    found = read_recording(path)
    assert found is not None
    spans = columns.phases(found.traces[0])
    return {
        Phase(code).name.lower(): float((spans.end_ns - spans.begin_ns)[spans.key == code].sum())
        / 1000
        for code in np.unique(spans.key).tolist()
    }


def work(at_us: float, correlation: int, tid: int = 1) -> list[Event]:
    launch = {**annotation("cudaLaunchKernel", at_us - 5, at_us - 4, tid), "cat": "cuda_runtime"}
    return [
        {**launch, "args": {"correlation": correlation}},
        kernel("gemm", at_us, at_us + 10, correlation=correlation),
    ]


def test_fsdp2_ranges_give_the_phases_of_kernels(tmp_path: Path) -> None:
    """FSDP2's ranges mark only where a module begins and ends; the kernels run between ranges."""
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
def test_named_ranges_give_the_phases_of_kernels(tmp_path: Path, name: str, phase: str) -> None:
    events = [annotation("ProfilerStep#1", 0, 100), annotation(name, 5, 40), *work(20, 1)]
    path = tmp_path / "rank0.json"
    path.write_text(document([*events, all_reduce(50, 60, seq=1)], 0))
    assert phases_us(path) == {phase: 10}


def test_a_group_may_have_a_hash_as_its_number(tmp_path: Path) -> None:
    """NCCL names a communicator by a number of 64 bits, far above c10d's counter of groups."""
    ranks = [rank_events(rank) for rank in range(2)]
    for events in ranks:
        (*_, last) = (one for one in events if "args" in one and "Seq" in one["args"])
        last["args"]["Process Group Name"] = str(2**64 - 1)
    folder = write(tmp_path / "job", [document(events, rank) for rank, events in enumerate(ranks)])
    rows = world_of(folder).communication.collectives
    assert {row.kind.group for row in rows} == {"0", str(2**64 - 1)}


@pytest.mark.parametrize(
    ("base_ns", "date"),
    [(0, "unknown"), (1_700_000_000 * 10**9, "2023-11-14T22:")],
)
def test_a_trace_whose_times_are_not_since_1970_has_no_date(
    tmp_path: Path, base_ns: int, date: str
) -> None:
    events, at = [], 0.0
    for step in range(120):
        length = (1000.0 if step < 60 else 2000.0) + step % 7
        events += [
            annotation(f"ProfilerStep#{step}", at, at + length),
            kernel("gemm", at, at + length / 2),
            all_reduce(at + length / 2, at + length - 100, seq=step),
        ]
        at += length
    folder = write(tmp_path / "job", [document(events, 0, 1, baseTimeNanoseconds=base_ns)])
    result, _ = analyse_in_detail(folder)
    assert result.context["timestamp"].startswith(date)
    times = [time for time, _ in result.incidents[0].anomalies]
    assert times
    assert all(time.startswith(date) if base_ns else not time for time in times)
