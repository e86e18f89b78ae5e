from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.recordings.profiler import read_recording
from tests.support.builders.profiler_traces import (
    Event,
    all_reduce,
    annotation,
    document,
    kernel,
    write,
)

Loss = Callable[[list[Event]], list[Event]]


def collective(at_us: float, op: str, number: int, **more: Any) -> list[Event]:
    correlation = 100 + number
    dims = {"Input Dims": [[1000]], "Input type": ["float"]}
    launch = {**annotation("cudaLaunchKernelExC", at_us + 2, at_us + 3), "cat": "cuda_runtime"}
    return [
        {**annotation(f"nccl:{op}", at_us, at_us + 10), "args": dims},
        {**launch, "args": {"correlation": correlation}},
        kernel(
            *("ncclDevKernel_Generic_4(x)", at_us + 500, at_us + 560, 20),
            correlation=correlation,
            **more,
        ),
    ]


def two_kinds(rank: int, said: bool) -> list[Event]:
    events = []
    for step in range(10):
        at = 5e9 + 1000 * step
        events += [annotation(f"ProfilerStep#{step}", at, at + 1000), kernel("gemm", at, at + 300)]
        for place, (op, name) in enumerate(
            (("all_reduce", "allreduce"), ("_all_gather_base", "_allgather_base"))
        ):
            number = 2 * step + place
            args = {
                **{"Collective name": name, "dtype": "Float", "In msg nelems": 1000},
                **{"Out msg nelems": 1000 * (1 + place), "Group size": 2, "Seq": number},
                **{"Process Group Name": "0", "Process Group Ranks": "[0, 1]"},
            }
            events += collective(at + 10 + 100 * place + rank, op, number, **args if said else {})
    return events


def without_kernel(events: list[Event]) -> list[Event]:
    return [e for e in events if not (e["cat"] == "kernel" and e["args"].get("correlation") == 108)]


def without_size(events: list[Event]) -> list[Event]:
    for event in events:
        if event.get("args", {}).get("correlation") == 108:
            event["args"] = {
                key: value for key, value in event["args"].items() if "nelems" not in key
            }
            event["args"].pop("dtype", None)
        event.get("args", {}).pop("Input type", None)
    return events


def without_name(events: list[Event]) -> list[Event]:
    for event in events:
        if event.get("args", {}).get("correlation") == 108 and event["cat"] == "kernel":
            event["name"] = "ncclDevKernel_Broadcast_RING_LL(x)"
            event["args"].pop("Collective name", None)
    return [e for e in events if not e["name"].startswith("nccl:")]


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("loss", [list, without_kernel, without_size, without_name])
def test_a_missing_record_on_one_rank_is_no_incident(
    tmp_path: Path, loss: Loss, said: bool
) -> None:
    ranks = two_kinds(0, said), loss(two_kinds(1, said))
    folder = write(tmp_path / "job", [document(e, rank) for rank, e in enumerate(ranks)])
    assert not analyse_in_detail(folder)[0].incidents


def test_different_operations_under_one_recorded_number_are_an_incident(tmp_path: Path) -> None:
    ranks = two_kinds(0, True), two_kinds(1, True)
    for event in ranks[1]:
        if event.get("args", {}).get("correlation") == 108 and event["cat"] == "kernel":
            event["args"] |= {"Collective name": "broadcast", "In msg nelems": 1000, "Rank": 1}
    folder = write(tmp_path / "job", [document(e, rank) for rank, e in enumerate(ranks)])
    (incidents,) = analyse_in_detail(folder)[0].incidents
    (mismatch,) = incidents.mismatches
    assert incidents.mismatch_count == 1
    assert mismatch.seq == 8
    assert [(issued.op, issued.size_bytes, ranks) for issued, ranks in mismatch.issued] == [
        ("all_reduce", 4000, (0,)),
        ("broadcast", 4000, (1,)),
    ]


@pytest.mark.parametrize("said", [True, False])
def test_a_recording_states_what_it_holds(tmp_path: Path, said: bool) -> None:
    folder = write(tmp_path / "job", [document(two_kinds(r, said), r) for r in (0, 1)])
    found = read_recording(folder)
    assert found is not None
    for trace in found.traces.values():
        recorded = trace.recorded
        assert recorded is not None
        assert recorded.device
        assert not recorded.training_thread
        assert recorded.times.tolist() == recorded.operation.tolist() == [True] * 20
        assert recorded.size.tolist() == [True] * 20
        assert recorded.number.tolist() == recorded.group.tolist() == [said] * 20
        assert not recorded.root.any()


@pytest.mark.parametrize("sizes_from_us", [0.0, 1000.0, 6500.0])
def test_calls_of_unknown_size_are_not_taken_for_scalars(
    tmp_path: Path, sizes_from_us: float
) -> None:
    """Old traces and traces of inference servers do not hold the sizes of calls."""
    documents = []
    for rank in (0, 1):
        events: list[Event] = [all_reduce(500.0, 515.0, 0, 1)]
        for step in range(6):
            begin_us = 1000.0 + 1000.0 * step
            events += [
                annotation(f"ProfilerStep#{step}", begin_us, begin_us + 1000),
                kernel("gemm", begin_us, begin_us + 300),
            ]
            for number in range(30):
                at_us = begin_us + 320 + 20 * number
                events.append(all_reduce(at_us, at_us + 15, 1 + 30 * step + number, 1))
        for event in events:
            if event["ts"] < sizes_from_us and "Collective name" in event.get("args", {}):
                del event["args"]["In msg nelems"], event["args"]["Out msg nelems"]
        documents.append(document(events, rank))
    result = analyse_in_detail(write(tmp_path / "job", documents))[0].worlds[0]
    named = [cause.id for cause in result.named_causes]
    assert named == (["scalars-one-by-one"] if sizes_from_us <= 1000 else [])
