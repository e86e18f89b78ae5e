from __future__ import annotations

from pathlib import Path

import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.world import WorldResult
from commprof.errors import CommprofError
from commprof.recordings.profiler import Recording, read_recording
from commprof.trace import columns
from commprof.trace.schema import OPS
from tests.support.builders.host_traces import (
    GLOO,
    GLOO_2,
    Event,
    group,
    operator,
    shapes,
    span,
    steps,
    trace,
    written,
)
from tests.support.builders.profiler_traces import document, rank_events, write

GATHERED = shapes([2000], [1000], None)
READ, READ_TWICE = shapes([1000]), shapes([2000])
BACKWARD = "autograd::engine::evaluate_function"


def read(path: Path) -> Recording:
    recording = read_recording(path)
    assert recording is not None
    return recording


def world_of(path: Path) -> WorldResult:
    return analyse_in_detail(path)[0].worlds[0]


def exposed_us(tmp_path: Path, events: list[Event]) -> float:
    text = trace([span("ProfilerStep#0", 0, 1000), *events])
    return 1000 * world_of(written(tmp_path / "job", [text])).parts.exposed_ms


def calls_of(path: Path, rank: int = 0) -> list[tuple[str, int, int]]:
    table = columns.collectives(read(path).traces[rank])
    names = [OPS[op] for op in table.op.tolist()]
    return list(zip(names, table.bytes_in.tolist(), table.bytes_out.tolist(), strict=True))


def in_flight(begin_us: float, end_us: float) -> list[Event]:
    return [
        operator("c10d::_allgather_base_", begin_us, begin_us + 10, **GATHERED),
        span("gloo:all_gather", begin_us + 5, end_us, GLOO, **READ),
    ]


@pytest.mark.parametrize(
    ("events", "waits_us"),
    [
        # With tensor parallelism, an operator calls Python, which waits for the collective.
        (
            [
                operator("aten::linear", 200, 900),
                operator("aten::addmm", 210, 890),
                operator("PythonSubclass", 220, 880),
                operator("_c10d_functional::wait_tensor", 250, 605),
                operator("aten::addmm", 610, 870),
            ],
            355,
        ),
        # FSDP2 waits in a hook that autograd's engine runs before the node.
        (
            [
                operator("autograd::engine::evaluate_function: AddmmBackward0", 100, 900),
                span("FSDP::pre_backward (0)", 110, 650),
                operator("fsdp::split_with_sizes_copy", 602, 640),
                operator("AddmmBackward0", 650, 890),
                operator("aten::mm", 651, 889),
            ],
            490,  # the wait begins at 110 µs, with FSDP2's range, and ends at 600 µs
        ),
        ([operator("GatherBackward", 300, 602), operator("aten::mm", 602, 900)], 300),
        (
            [
                *(operator("mylib::exchange", 40, 602), operator("aten::mm", 602, 900)),
                operator("c10d::allreduce_", 41, 50, **shapes([[5]])),
                span("gloo:all_reduce", 45, 60, GLOO_2, **shapes([5])),
            ],
            540 + 10,  # the wait lasts from 50 µs to 600 µs; its first 10 µs are the all-reduce's
        ),
        ([operator("mylib::wait_all", 300, 601), operator("aten::mm", 601, 900)], 301),
        (
            [
                operator("autograd::engine::evaluate_function: MmBackward0", 20, 900),
                operator("MmBackward0", 21, 899),
                operator("aten::mm", 22, 898),
            ],
            0,
        ),
        ([operator("aten::mm", 20, 900), operator("aten::resolve_conj", 30, 31)], 0),
        ([operator("Redistribute", 20, 300), operator("aten::mm", 300, 900)], 0),
    ],
)
def test_an_operator_that_waits_for_a_collective_does_not_hide_it(
    tmp_path: Path, events: list[Event], waits_us: float
) -> None:
    found = exposed_us(tmp_path, [*in_flight(0, 600), *events])
    assert found == pytest.approx(waits_us, abs=0.01)


def test_issuing_is_work_unless_the_operator_returns_only_when_its_collective_is_complete(
    tmp_path: Path,
) -> None:
    """gloo runs ``monitored_barrier`` as messages inside the operator that issues it."""
    of_step = [
        operator("aten::mm", 0, 100),
        operator("c10d::monitored_barrier_", 100, 400, **shapes([0], None)),
        span("gloo:send", 110, 120, **shapes([1])),
        span("gloo:recv", 130, 390, **shapes([1])),
        operator("aten::mm", 400, 1000),
    ]
    path = written(tmp_path / "job", [trace(steps(3, 1000, of_step))])
    assert calls_of(path) == [("monitored_barrier", 0, 0)] * 3
    assert world_of(path).parts.exposed_ms == pytest.approx(0.3)


#: After a reduce-scatter, gloo's ``Work.wait`` splits a tensor and copies a part.
PART_COPY = [
    operator("aten::chunk", 620, 640),
    operator("aten::split", 622, 638),
    operator("aten::copy_", 650, 700),
]


@pytest.mark.parametrize(
    ("after_issue", "copy", "waits_us", "end_us"),
    [
        ([], PART_COPY, 680, 700),
        ([operator("mylib::reduced", 5, 720)], PART_COPY, 680, 700),
        # The thread did other work and split its own tensor, so nothing shows when it waited.
        ([operator("aten::mm", 20, 610), operator("aten::mm", 611, 619)], PART_COPY, 0, 600),
        ([], [*PART_COPY[:2], span("Optimizer.step#SGD", 645, 900)], 580, 600),
    ],
)
def test_a_reduce_scatter_of_gloo_ends_with_the_copy_of_the_waiting_thread(
    tmp_path: Path, after_issue: list[Event], copy: list[Event], waits_us: float, end_us: float
) -> None:
    of_step = [
        operator("c10d::_reduce_scatter_base_", 10, 20, **shapes([1000], [2000], None)),
        span("gloo:all_reduce", 15, 600, GLOO, **READ_TWICE),
        *(*after_issue, *copy, operator("aten::mm", 710, 715), operator("aten::mm", 730, 1000)),
    ]
    path = written(tmp_path / "job", [trace(steps(3, 1000, of_step))])
    assert 1000 * world_of(path).parts.exposed_ms == pytest.approx(waits_us, abs=0.01)
    table = columns.collectives(read(path).traces[0])
    assert (table.end_ns % 1_000_000).tolist() == [1000 * end_us] * 3


@pytest.mark.parametrize(
    ("next_us", "waits_us"),
    [
        # Python usually runs for 50 µs after the wait, so this wait ended at 850 µs.
        (900, 550 + 250),
        (630, 550),
        # A pause of more than 11 ms is work of the script, because no thread lacks a core so long.
        (12_000, 550),
    ],
)
def test_a_thread_that_goes_on_later_than_usual_has_waited(
    tmp_path: Path, next_us: float, waits_us: float
) -> None:
    events = []
    for number in range(5):
        begin, late = 20_000 * number, number == 3
        following = next_us if late else 650
        events += [
            span(f"ProfilerStep#{number}", begin, begin + 20_000),
            *({**event, "ts": event["ts"] + begin} for event in in_flight(0, 600)),
            operator("aten::mm", begin + 10, begin + 50),
            operator("aten::mm", begin + following, begin + 20_000),
        ]
    few = [event for event in events if event["ts"] >= 40_000]
    for name, recorded, right_us in (("job", events, waits_us), ("few", few, 550)):
        path = written(tmp_path / name, [trace(recorded)])
        waited = columns.waits(read(path).traces[0])
        of_step = waited.begin_ns // 20_000_000 == 3
        assert (waited.end_ns - waited.begin_ns)[of_step].sum() == 1000 * right_us


def test_python_between_events_of_one_length_does_not_end_later_by_a_collective(
    tmp_path: Path,
) -> None:
    events, ends_us = [], (600, 1500, 2500, 3500, 4500)
    for number, end_us in enumerate(ends_us):
        of_step = [operator("aten::mm", 10, 50), operator("aten::mm", 5000, 20_000)]
        events += [
            {**event, "ts": event["ts"] + 20_000 * number}
            for event in [
                *(span(f"ProfilerStep#{number}", 0, 20_000), *in_flight(0, end_us), *of_step),
            ]
        ]
    waited = columns.waits(read(written(tmp_path / "job", [trace(events)])).traces[0])
    end_ns = waited.end_ns % 20_000_000
    assert end_ns[end_ns > 50_000].tolist() == [1000 * end_us for end_us in ends_us]


@pytest.mark.parametrize("shaped", [True, False])
def test_a_collective_is_what_its_operator_says_whatever_the_backend_runs(
    tmp_path: Path, shaped: bool
) -> None:
    """gloo runs a reduce-scatter as an all-reduce."""
    issued = (
        ("c10d::_reduce_scatter_base_", shapes([500], [1000], None), [1000]),
        ("c10d::allreduce_", shapes([[1000]], None), [1000]),
        ("c10d::_reduce_scatter_base_", shapes([500], [1000], None), [1000]),
        ("c10d::_reduce_scatter_base_", shapes([200], [400], None), [400]),
    )
    of_step = []
    for turn, (name, tensors, read_by_gloo) in enumerate(issued):
        begin = 100.0 * turn
        of_step += [
            operator(name, begin, begin + 10, **(tensors if shaped else {})),
            span(
                "gloo:all_reduce",
                begin + 20,
                begin + 90,
                GLOO,
                **(shapes(read_by_gloo) if shaped else {}),
            ),
        ]
    path = written(tmp_path / "job", [trace(steps(3, 1000, of_step))])
    names = [
        "reduce_scatter_tensor",
        "all_reduce",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor",
    ]
    found = calls_of(path)
    assert [op for op, _, _ in found] == names * 3
    if shaped:
        assert [size for _, size, _ in found[:4]] == [4000, 4000, 4000, 1600]
        assert [size for _, _, size in found[:4]] == [2000, 4000, 2000, 800]


def test_bandwidth_is_that_of_the_operation_asked_for(tmp_path: Path) -> None:
    """8000 bytes in 80 µs are 0.1 GB/s.

    In a reduce-scatter of two ranks, busbw is half of algbw.
    """
    of_step = [
        operator("aten::mm", 0, 100),
        operator("c10d::_reduce_scatter_base_", 100, 110, **shapes([1000], [2000], None)),
        span("gloo:all_reduce", 110, 180, GLOO, **shapes([2000])),
        operator("aten::mm", 190, 900),
    ]
    texts = [trace(steps(4, 1000, of_step), rank) for rank in (0, 1)]
    (row,) = world_of(written(tmp_path / "job", texts)).communication.collectives
    assert (row.kind.op, row.kind.size_bytes, row.kind.group, row.kind.group_size) == (
        *("reduce_scatter_tensor", (8000, 8000), "0", 2),
    )
    assert row.times.algbw_gb_per_s == pytest.approx(0.1)
    assert row.times.busbw_gb_per_s == pytest.approx(0.05)


def test_a_list_collective_is_one_call_with_the_bytes_of_all_its_tensors(tmp_path: Path) -> None:
    """gloo runs a list reduce-scatter as one all-reduce for each of the three ranks."""
    of_step = [
        operator("c10d::reduce_scatter_", 0, 20, **shapes([[1500]], None)),
        span("gloo:all_reduce", 10, 50, GLOO, **shapes([1500])),
        span("gloo:all_reduce", 15, 60, GLOO_2, **shapes([1500])),
        span("gloo:all_reduce", 51, 95, GLOO, **shapes([1500])),
        operator("c10d::alltoall_", 100, 110, **shapes([[700]] * 3, [[700]] * 3)),
        span("gloo:all_to_all", 105, 180, GLOO, **shapes([700], [700], [700])),
        operator("c10d::allgather_", 200, 210, **shapes(None, [[300]])),
        span("gloo:all_gather", 205, 280, GLOO, **shapes([300])),
        operator("c10d::allreduce_coalesced_", 300, 310, **shapes([[100], [200]])),
        span("gloo:all_reduce", 305, 380, GLOO, **shapes([100], [200])),
        # The shape of a scalar is an empty list.
        operator("c10d::allreduce_", 400, 410, **shapes([[]])),
        span("gloo:all_reduce", 405, 480, GLOO, **shapes([])),
    ]
    path = written(tmp_path / "job", [trace(steps(2, 1000, of_step), world_size=3)])
    assert calls_of(path)[:5] == [
        ("reduce_scatter", 3 * 6000, 6000),
        ("all_to_all", 3 * 2800, 3 * 2800),
        ("all_gather", 1200, 3 * 1200),
        ("all_reduce_coalesced", 1200, 1200),
        ("all_reduce", 4, 4),
    ]
    ends_ns = columns.collectives(read(path).traces[0]).end_ns
    assert ends_ns[0] == 95_000


def test_checks_inside_an_operator_are_part_of_its_collective(tmp_path: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch compare the ranks' calls before a collective."""
    of_step = [
        operator("aten::mm", 0, 100),
        operator("c10d::allreduce_", 100, 500, **shapes([[1000]], None)),
        *(span("gloo:send", 110, 150, **shapes([1])), span("gloo:recv", 120, 160, **shapes([1]))),
        span("gloo:all_gather", 170, 300, GLOO_2, **shapes([1])),
        span("gloo:all_gather", 310, 480, GLOO_2, **shapes([7])),
        span("gloo:all_reduce", 490, 600, GLOO, **shapes([1000])),
        operator("aten::mm", 605, 1000),
    ]
    path = written(tmp_path / "job", [trace(steps(3, 1000, of_step))])
    assert calls_of(path) == [("all_reduce", 4000, 4000)] * 3
    assert world_of(path).parts.exposed_ms == pytest.approx(0.5)


FOUR = (0, 1, 2, 3)
MESH = [group("0", FOUR), group("1", (0, 2)), group("3", (0, 1))]


def mesh_of_rank(rank: int) -> list[Event]:
    row, column = ((0, 2), (1, 3))[rank % 2], ((0, 1), (2, 3))[rank // 2]
    return [group("0", FOUR), group(f"{1 + rank % 2}", row), group(f"{3 + rank // 2}", column)]


def test_a_group_that_the_recording_does_not_tell_is_unknown(tmp_path: Path) -> None:
    """The all-gather's size fits two groups; the all-reduce's size fits any group."""
    texts = []
    for rank in FOUR:
        begin = 300 if rank == 2 else 100
        of_step = [
            operator("aten::mm", 0, begin),
            operator("c10d::allreduce_", begin, begin + 10, **shapes([[1000]], None)),
            span("gloo:all_reduce", begin + 5, 400, GLOO, **shapes([1000])),
            operator("c10d::_allgather_base_", 410, 420, **GATHERED),
            span("gloo:all_gather", 415, 500, GLOO, **READ),
            operator("aten::mm", 505, 900),
        ]
        texts.append(trace(steps(8, 1000, of_step), rank, 4, mesh_of_rank(rank)))
    path = written(tmp_path / "job", texts)
    world = world_of(path)
    assert {
        row.kind.op: (row.kind.group, row.kind.group_size, row.kind.group_ranks)
        for row in world.communication.collectives
    } == {
        "all_reduce": ("", 0, ()),
        "all_gather_into_tensor": ("", 2, ()),
    }
    assert {row.kind.op: row.kind.size_bytes for row in world.communication.collectives} == {
        "all_reduce": (4000, 4000),
        "all_gather_into_tensor": (8000, 8000),
    }
    assert world.lateness.late_rank is None
    assert world.parts.unsplit_ms == pytest.approx(world.parts.exposed_ms)
    recording = read(path)
    assert recording.traces[0].recorded is not None
    assert not recording.traces[0].recorded.group.any()
    assert any("process group of 64 calls is not recorded" in text for text in recording.problems)


@pytest.mark.parametrize(
    ("groups", "gathered", "told"),
    [
        ([group("0", FOUR)], 2, None),
        ([group("0", FOUR)], 4, ("0", 4)),
        ([group("0", FOUR), group("1", (0, 2))], 2, ("1", 2)),
        ([group("0", FOUR), group("1", (0, 2))], 4, ("0", 4)),
        # A group of NCCL runs nothing on the host.
        ([group("0", FOUR, "cuda:nccl"), group("1", (0, 2)), group("2", FOUR)], 4, ("2", 4)),
        ([group("0", FOUR), group("1", FOUR)], 4, ("unnamed", 4)),
        ([], 4, ("unnamed", 4)),
        ([], 2, None),
    ],
)
def test_the_group_is_the_listed_one_that_fits_alone(
    tmp_path: Path, groups: list[Event], gathered: int, told: tuple[str, int] | None
) -> None:
    of_step = [
        operator("c10d::_allgather_base_", 100, 110, **shapes([1000 * gathered], [1000])),
        span("gloo:all_gather", 105, 200, GLOO, **READ),
    ]
    path = written(tmp_path / "job", [trace(steps(2, 1000, of_step), 0, 4, groups)])
    (found,) = read(path).traces[0].groups.values()
    assert (found.name, found.size) == (told or ("", gathered))
    assert calls_of(path) == [("all_gather_into_tensor", 4000, 4000 * gathered)] * 2


def test_unknown_groups_are_empty_in_tables(tmp_path: Path) -> None:
    of_step = [
        operator("c10d::allgather_", 100, 110, **shapes(None, [[1000]])),
        span("gloo:all_gather", 105, 200, GLOO, **READ),
    ]
    path = written(tmp_path / "job", [trace(steps(3, 1000, of_step), 0, 4, MESH)])
    (row,) = world_of(path).communication.collectives
    assert (row.kind.group_label, row.kind.group_size, row.kind.sizes_known) == ("", 0, False)


@pytest.mark.parametrize("prefix", ["gloo", "hccl", "mtia", "cncl", "Some_Backend2", "UCC"])
@pytest.mark.parametrize("declared", [True, False])
def test_ranges_of_any_backend_count_by_c10ds_words(
    tmp_path: Path, prefix: str, declared: bool
) -> None:
    of_step = [
        *(operator("aten::mm", 10 + 1000 * turn, 910 + 1000 * turn) for turn in range(10)),
        operator("c10d::alltoall_base_", 11000, 11900),
        span(f"{prefix}:all_to_all", 11100, 41100, 3, **shapes([1000000])),
        *(operator("c10d::barrier", 42000, 42060), span("gloo:barrier", 42010, 42050, 4)),
        operator("aten::mm", 43000, 43900),
    ]
    backends = f"npu:{prefix},cpu:gloo" if declared else "gloo"
    groups = [group("0", (0, 1), backends if declared else "cpu:gloo")]
    texts = [trace(steps(12, 50000, of_step), rank, 2, groups, backends) for rank in (0, 1)]
    world = world_of(written(tmp_path / "job", texts))
    assert {row.kind.op for row in world.communication.collectives} == {
        "all_to_all_single",
        "barrier",
    }
    # The all-to-all is exposed from 11.9 ms, the end of its issue, to 41.1 ms.
    assert world.parts.exposed_ms == pytest.approx(29.2, abs=0.1)


def test_a_range_of_the_script_is_no_collective_and_is_named(tmp_path: Path) -> None:
    of_step = [
        *(operator("aten::mm", 0, 100), span("data:gather", 200, 900)),
        operator("c10d::allreduce_", 100, 110, **shapes([[1000]])),
        span("gloo:all_reduce", 105, 200, GLOO, **READ),
        *(span("train:reduce_lr", 910, 990), span("T:all_reduce", 99, 300)),
    ]
    path = written(tmp_path / "job", [trace(steps(3, 1000, of_step))])
    assert calls_of(path) == [("all_reduce", 4000, 4000)] * 3
    assert any(
        "3 ranges such as data:gather may be the script's own" in s for s in read(path).problems
    )


@pytest.mark.parametrize("category", ["mtia_ccp_events", "hpu_op", "collective_comm"])
def test_events_of_a_device_that_are_not_read_are_counted_and_said(
    tmp_path: Path, category: str
) -> None:
    of_step = [
        *(operator("aten::mm", 0, 300), operator("aten::mm", 650, 900)),
        operator("c10d::allreduce_", 300, 310, **shapes([[1000]])),
        span("hccl:all_reduce", 305, 600, GLOO, **READ),
        {**span("dma_request", 0, 900), "cat": category},
    ]
    text = trace(steps(3, 1000, of_step), world_size=2, backend="hccl")
    recording = read(written(tmp_path / "job", [text]))
    assert any(
        "3 events of a device such as dma_request are of a kind that is not read" in problem
        for problem in recording.problems
    )
    assert calls_of(tmp_path / "job") == [("all_reduce", 4000, 4000)] * 3


@pytest.mark.parametrize(
    "host", [[], [operator("aten::mm", 0, 300)]], ids=["alone", "with operators"]
)
def test_a_trace_with_only_events_that_are_not_read_is_refused_by_their_name(
    tmp_path: Path, host: list[Event]
) -> None:
    of_step = [*host, {**span("fused_gemm", 0, 900), "cat": "hpu_op"}]
    path = written(tmp_path / "job", [trace(steps(3, 1000, of_step), world_size=2)])
    with pytest.raises(CommprofError, match="3 events of a device such as fused_gemm are of a"):
        read_recording(path)


def test_beside_kernels_times_are_not_said_to_be_those_of_the_host(tmp_path: Path) -> None:
    unread = {**span("reduce", 500, 700), "cat": "collective_comm"}
    path = write(tmp_path / "job", [document([*rank_events(0), unread], 0, 1)])
    (problem,) = (p for p in read(path).problems if "of a device such as reduce" in p)
    assert problem.endswith(
        "1 event of a device such as reduce is of a kind that is not read: no figure counts them"
    )


def test_without_operators_of_the_training_thread_its_work_is_not_known(tmp_path: Path) -> None:
    of_step = [
        span("gloo:all_reduce", 18000, 188000, GLOO, **shapes([321271])),
        *(
            operator("aten::view", 18001, 18002, GLOO),
            operator("aten::copy_", 180000, 187000, GLOO),
        ),
    ]
    alone = trace(steps(12, 210000, of_step), world_size=2)
    (found,) = read(written(tmp_path / "alone", [alone])).traces.values()
    assert found.recorded is not None
    assert not found.recorded.training_thread
    behind = [
        *steps(12, 210000, of_step),
        operator("aten::empty", 12 * 210000 + 9, 12 * 210000 + 11),
    ]
    (found,) = read(written(tmp_path / "behind", [trace(behind, world_size=2)])).traces.values()
    assert found.recorded is not None
    assert not found.recorded.training_thread
    both = trace(steps(12, 210000, [*of_step, operator("aten::mm", 0, 9000)]), world_size=2)
    (found,) = read(written(tmp_path / "both", [both])).traces.values()
    assert found.recorded is not None
    assert found.recorded.training_thread


def test_a_range_within_its_operator_shows_the_call_and_not_the_transfer(tmp_path: Path) -> None:
    """The range of a device's backend ends when the call is handed over to the device."""
    of_step = [
        operator("c10d::allreduce_", 100, 200, **shapes([[1000]])),
        span("nccl:all_reduce", 110, 190, **READ),
        operator("aten::mm", 200, 900),
    ]
    (found,) = read(
        written(tmp_path / "job", [trace(steps(3, 1000, of_step), backend="nccl")])
    ).traces.values()
    assert found.recorded is not None
    assert not found.recorded.times.any()


def test_an_operator_whose_collective_has_no_range_is_named(tmp_path: Path) -> None:
    """The call at 1300 µs fails, so later ranges cannot be assigned to operators for certain."""
    of_step = [
        operator("c10d::allreduce_", 100, 110, **shapes([[1000]])),
        span("gloo:all_reduce", 105, 200, GLOO, **READ),
    ]
    events = steps(5, 1000, of_step)
    failed = operator("c10d::allreduce_", 1300, 1310, **shapes([[1000]]))
    path = written(tmp_path / "job", [trace([*events, failed])])
    issued_ns = columns.collectives(read(path).traces[0]).issue_ns
    assert issued_ns.tolist() == [100_000, 1_100_000, 2_105_000, 3_105_000, 4_105_000]
    assert any(
        "no range shows when 1 collective of c10d ran" in text for text in read(path).problems
    )


@pytest.mark.parametrize("root", [0, 1])
def test_the_root_is_the_operators(tmp_path: Path, root: int) -> None:
    of_step = [
        operator(
            *("c10d::broadcast_", 100, 110),
            **{
                **shapes([[1000]], None),
                "Concrete Inputs": ["", "", str(root), "0", "False", "-1"],
            },
        ),
        span("gloo:broadcast", 105, 200, GLOO, **READ),
    ]
    (found,) = read(written(tmp_path / "job", [trace(steps(3, 1000, of_step))])).traces.values()
    assert columns.collectives(found).peer.tolist() == [root] * 3
    assert found.recorded is not None
    assert found.recorded.root.all()


def test_what_follows_a_collective_on_gloos_thread_is_not_its_transfer(tmp_path: Path) -> None:
    """PowerSGD's hook runs in gloo's thread, which ends the first range only after the hook."""
    of_step = [
        operator("c10d::allreduce_", 100, 110, **shapes([[1000]])),
        span("gloo:all_reduce", 105, 490, GLOO, **READ),
        operator("aten::mm", 205, 295, GLOO),
        operator("c10d::allreduce_", 300, 310, GLOO, **shapes([[500]])),
        span("gloo:all_reduce", 306, 480, GLOO_2, **shapes([500])),
    ]
    path = written(tmp_path / "job", [trace(steps(3, 1000, of_step))])
    table = columns.collectives(read(path).traces[0])
    assert (table.end_ns[:2] - table.issue_ns[:2]).tolist() == [200_000, 180_000]


def test_a_thread_of_gloo_that_issues_most_is_not_the_training_thread(tmp_path: Path) -> None:
    """PowerSGD's hook issues two of its three collectives in callbacks, on gloo's threads."""
    of_step = [
        operator("aten::mm", 0, 95),
        operator("c10d::allreduce_", 100, 110, **shapes([[1000]])),
        span("gloo:all_reduce", 105, 895, GLOO, **READ),
        operator("aten::mm", 205, 295, GLOO),
        operator("c10d::allreduce_", 300, 310, GLOO, **shapes([[500]])),
        span("gloo:all_reduce", 306, 480, GLOO_2, **shapes([500])),
        operator("aten::mm", 482, 495, GLOO),
        operator("c10d::allreduce_", 500, 510, GLOO, **shapes([[700]])),
        span("gloo:all_reduce", 506, 880, GLOO_2, **shapes([700])),
        operator("aten::mm", 900, 1000),
    ]
    world = world_of(written(tmp_path / "job", [trace(steps(8, 1000, of_step))]))
    assert world.parts.step_ms == pytest.approx(1.0)
    assert world.parts.exposed_ms == pytest.approx(0.785)


def test_what_callbacks_compute_is_waited_for_if_ddp_copies_the_bucket_then(
    tmp_path: Path,
) -> None:
    of_step = [
        operator("aten::mm", 0, 95),
        operator("c10d::allreduce_", 100, 110, **shapes([[1000]])),
        span("gloo:all_reduce", 105, 960, GLOO, **READ),
        operator("c10d::allreduce_", 300, 310, GLOO, **shapes([[500]])),
        span("gloo:all_reduce", 306, 480, GLOO_2, **shapes([500])),
        operator("aten::mm", 482, 700, GLOO),
        operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", 760, 770),
        operator("aten::mm", 770, 1000),
    ]
    world = world_of(written(tmp_path / "job", [trace(steps(8, 1000, of_step))]))
    assert world.parts.exposed_ms == pytest.approx(0.65)


@pytest.mark.parametrize("marked", [True, False])
def test_steps_in_which_ranks_recorded_other_collectives_match_none(
    tmp_path: Path, marked: bool
) -> None:
    """torch.profiler leaves out calls of threads that it does not follow.

    Each rank can lack different calls.
    """

    def events(rank: int) -> list[Event]:
        found: list[Event] = []
        for step in range(7):
            missing = {2: 0, 3: 1}.get(step) if rank else {2: 1, 3: 0}.get(step)
            of_step = [operator("aten::mm", 0, 50 + 40 * rank)]
            for turn, elements in enumerate((1000, 500)):
                begin = 100.0 + 200 * turn
                if turn != missing:
                    of_step += [
                        operator("c10d::allreduce_", begin, begin + 10, **shapes([[elements]])),
                        span("gloo:all_reduce", begin + 5, begin + 90, GLOO, **shapes([elements])),
                    ]
            of_step += [operator("aten::mm", 600, 900), span("Optimizer.step#SGD.step", 900, 999)]
            if marked:
                of_step.append(span(f"ProfilerStep#{step}", 0, 1000))
            found += [{**event, "ts": event["ts"] + 1000 * step} for event in of_step]
        return found

    path = written(tmp_path / "job", [trace(events(rank), rank) for rank in (0, 1)])
    result, _ = analyse_in_detail(path)
    assert not result.incidents
    by_rank = [columns.collectives(read(path).traces[rank]).seq.tolist() for rank in (0, 1)]
    assert [len(seqs) for seqs in by_rank] == [12, 12]
    # Without marks, steps begin at the optimizer's updates, so the first events are in no step.
    first = 0 if marked else 2
    assert by_rank[0][first:4] == by_rank[1][first:4]
    assert by_rank[0][6:] == by_rank[1][6:]
    assert not set(by_rank[0][4:6]) & set(by_rank[1][4:6])
    assert len(set(by_rank[0]) & set(by_rank[1])) == 10 - first


def test_a_broadcast_without_its_root_matches_no_other(tmp_path: Path) -> None:
    """In gloo's tree, the root decides who waits for whom.

    A trace names the root only if shapes were recorded.
    """
    of_step = [
        operator("c10d::broadcast_", 100, 110),
        span("gloo:broadcast", 105, 200, GLOO),
        operator("aten::mm", 300, 900),
    ]
    texts = [trace(steps(4, 1000, of_step), rank) for rank in (0, 1)]
    world = world_of(written(tmp_path / "job", texts))
    assert world.parts.exposed_ms == pytest.approx(0.09)
    assert world.parts.unsplit_ms == pytest.approx(0.09)


ODD = (None, [], {}, "x", -1, 2**70, [None], [[-1]], [[2**62, 2**62]], [[[1] * 3] * 2], True)


@pytest.mark.parametrize("odd", ODD)
def test_damaged_arguments_are_unknown_sizes(tmp_path: Path, odd: object) -> None:
    events = []
    for turn, name in enumerate(("Input Dims", "Input type", "Concrete Inputs")):
        begin = 1000.0 * turn
        gathered = operator("c10d::_allgather_base_", begin + 100, begin + 110, **GATHERED)
        transfer = span("gloo:all_gather", begin + 105, begin + 200, GLOO, **READ)
        for event in (gathered, transfer):
            event["args"] = {**event["args"], name: odd}
        events += [span(f"ProfilerStep#{turn}", begin, begin + 1000), gathered, transfer]
    groups = [group("0", (0, 1)), {"pg_name": odd, "pg_size": odd, "ranks": odd}]
    path = written(tmp_path / "job", [trace(events, groups=groups)])
    assert [op for op, _, _ in calls_of(path)] == ["all_gather_into_tensor"] * 3
    assert world_of(path).world_size == 2


def in_two_threads(second: int) -> list[Event]:
    return [
        *in_flight(10, 300),
        operator("c10d::_allgather_base_", 400, 410, second, **GATHERED),
        span("gloo:all_gather", 405, 500, GLOO_2, **READ),
    ]


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (in_flight(10, 300), True),
        (in_two_threads(3), False),
        # torch.profiler follows autograd's threads.
        ([*in_two_threads(3), operator(f"{BACKWARD}: Mul", 390, 420, 3)], True),
    ],
)
def test_collectives_of_other_threads_may_be_missing(
    tmp_path: Path, events: list[Event], says: bool
) -> None:
    text = trace([span("ProfilerStep#0", 0, 1000), *events])
    problems = read(written(tmp_path / "job", [text])).problems
    assert any("other Python threads" in said for said in problems) == says


@pytest.mark.parametrize("names_host", [True, False])
def test_traces_of_one_host_need_no_comparison_of_clocks(tmp_path: Path, names_host: bool) -> None:
    """torch's writer of traces in Python does not name the host."""
    texts = []
    for rank in (0, 1):
        events = []
        for step in range(6):
            at, late = 1000 * step, 400 * (step % 2 == rank)
            events += [
                span(f"ProfilerStep#{step}", at, at + 1000),
                operator("c10d::allreduce_", at + 100, at + 110, **READ),
                span("gloo:all_reduce", at + 105, at + 400 + late, GLOO, **READ),
                operator("aten::mm", at + 900, at + 990),
            ]
        text = trace(events, rank)
        texts.append(text if names_host else text.replace('"host_name": "host", ', ""))
    problems = " ".join(read(written(tmp_path / "job", texts)).problems)
    assert ("the ends differ too much to separate waiting from transfer" in problems) != names_host
    told = "Traces of one host need no comparison of clocks if they name the host" in problems
    assert told != names_host
    assert "one rank per GPU" not in problems
