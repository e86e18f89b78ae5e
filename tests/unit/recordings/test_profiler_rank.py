from __future__ import annotations

import json
from pathlib import Path

import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.recordings.profiler import read_recording
from tests.support.builders.profiler_traces import (
    all_reduce,
    annotation,
    both,
    document,
    kernel,
    rank_events,
)


@pytest.mark.parametrize(
    ("said", "config", "of_host", "of_device"),
    [
        ("nccl", "cuda:nccl", "nccl", "nccl"),
        # torch writes "undefined" if the script names no backend.
        ("undefined", "cpu:gloo", "gloo", "gloo"),
        ("undefined", "cuda:nccl", "nccl", "nccl"),
        ("undefined", "cpu:gloo,cuda:nccl", "gloo", "nccl"),
        ("undefined", None, "undefined", "undefined"),
        ("cpu:gloo,cuda:nccl", None, "gloo", "nccl"),
        ("cuda:nccl", "cuda:nccl", "nccl", "nccl"),
        (None, None, "unknown", "unknown"),
    ],
)
def test_the_backend_is_that_of_the_recorded_device(
    tmp_path: Path, said: str | None, config: str | None, of_host: str, of_device: str
) -> None:
    host = [annotation("ProfilerStep#1", 0, 100), annotation("gloo:all_reduce", 10, 60, tid=2)]
    for events, expected in ((host, of_host), (rank_events(0), of_device)):
        whole = json.loads(document(events, 0))
        about = {"backend": said, "pg_config": config and [{"backend_config": config}, {}]}
        whole["distributedInfo"] |= about
        if said is None:
            del whole["distributedInfo"]["backend"]
        path = tmp_path / "one.json"
        path.write_text(json.dumps(whole))
        found = read_recording(path)
        assert found is not None
        (group,) = found.traces[0].groups.values()
        named = {found.traces[0].metadata["backend"], group.backend or "unknown"}
        assert named == {expected}


def test_the_backend_is_nccl_if_the_host_called_nccl(tmp_path: Path) -> None:
    host = [annotation("ProfilerStep#1", 0, 100), annotation("nccl:all_reduce", 10, 60, tid=2)]
    whole = json.loads(document(host, 0))
    config = [{"backend_config": "cpu:gloo,cuda:nccl"}]
    whole["distributedInfo"] |= {"backend": "undefined", "pg_config": config}
    (tmp_path / "one.json").write_text(json.dumps(whole))
    found = read_recording(tmp_path / "one.json")
    assert found is not None
    assert found.traces[0].metadata["backend"] == "nccl"


def test_the_reduce_op_is_empty_because_it_is_not_recorded(tmp_path: Path) -> None:
    (row,) = analyse_in_detail(both(tmp_path / "job"))[0].worlds[0].communication.collectives
    assert (row.kind.op, row.kind.dtype, row.kind.reduce_op) == ("all_reduce", "Float", "")


def test_element_types_have_the_same_numbers_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for rank in (0, 1):
        whole = json.loads(document(rank_events(rank), rank))
        if rank == 1:
            alone = all_reduce(3950.0, 3960.0, 99)
            alone["args"] |= {"dtype": "BFloat16", "Process Group Name": "1", "Group size": 1}
            alone["args"]["Process Group Ranks"] = "[1]"
            whole["traceEvents"].append(alone)
        (tmp_path / "job" / f"rank{rank}.json").write_text(json.dumps(whole))
    found = read_recording(tmp_path / "job")
    assert found is not None
    assert [trace.metadata["dtypes"] for trace in found.traces.values()] == [
        ["BFloat16", "Float"],
        ["BFloat16", "Float"],
    ]
    rows = analyse_in_detail(tmp_path / "job")[0].worlds[0].communication.collectives
    assert {(row.kind.dtype, row.kind.size_bytes) for row in rows} >= {("Float", (4000, 4000))}
    assert not analyse_in_detail(tmp_path / "job")[0].incidents


def test_an_external_id_of_one_window_means_nothing_in_another(tmp_path: Path) -> None:
    generic = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    for number, op in enumerate(("all_reduce", "all_gather")):
        at = 1000 * number
        launch = annotation("cudaLaunchKernelExC", at + 10, at + 11)
        operator = annotation(f"nccl:{op}", at + 8, at + 30, tid=5)
        events = [
            annotation(f"ProfilerStep#{number}", at, at + 100),
            {**launch, "cat": "cuda_runtime", "args": {"correlation": 7}},
            {**operator, "cat": "cpu_op", "args": {"External id": 8}},
            kernel(generic, at + 40, at + 60, correlation=7, **{"External id": 8}),
        ]
        (tmp_path / f"rank0.window{number}.json").write_text(document(events, 0))
    (world,) = analyse_in_detail(tmp_path)[0].worlds
    assert sorted(row.kind.op for row in world.communication.collectives) == [
        "all_gather",
        "all_reduce",
    ]
