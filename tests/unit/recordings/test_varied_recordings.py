from __future__ import annotations

import gzip
import io
import json
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from commprof.analysis.late.dumped_hang import diagnosis
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.world import WorldResult
from commprof.commands import main
from commprof.errors import CommprofError, TraceError
from commprof.forecast.fit.points import read_points
from commprof.recordings.flight_recorder_files import is_flight_recorder
from commprof.recordings.nccl_tests import read_nccl_tests
from commprof.recordings.profiler import read_recording
from commprof.recordings.profiler_call_columns import in_columns, kinds_of
from commprof.recordings.profiler_calls import operation
from commprof.recordings.profiler_events import read_events
from commprof.recordings.profiler_kinds import Category, EventKind, is_communication, kind_of
from commprof.recordings.profiler_rank import recorded_rank
from commprof.recordings.profiler_windows import of_one_process
from commprof.trace import columns
from commprof.trace.schema import OPS
from tests.support.builders.flight_dumps import dump, entry, write_dumps
from tests.support.builders.profiler_traces import (
    Event,
    all_reduce,
    annotation,
    both,
    document,
    kernel,
    rank_events,
)


def world_of(path: Path) -> WorldResult:
    return analyse_in_detail(path)[0].worlds[0]


def ranks_of(folder: Path) -> list[int]:
    found = read_recording(folder)
    assert found is not None
    return sorted(found.traces)


def without_rank(rank: int) -> str:
    whole = json.loads(document(rank_events(rank), rank))
    del whole["distributedInfo"]
    return json.dumps(whole)


@pytest.mark.parametrize(
    "names",
    [
        ("rank0_trace.json", "rank1_trace.json"),
        ("trace_rank_0.json", "trace_rank_1.json"),
        ("RANK-0.pt.trace.json", "RANK-1.pt.trace.json"),
        ("trace_0.json", "trace_1.json"),
        ("0.json", "1.json"),
        ("iteration_100_rank0.json", "iteration_100_rank1.json"),
        # torch's own handler names files by host, process and time.
        ("host_4711.1699999999999.pt.trace.json", "host_4712.1699999999998.pt.trace.json"),
        ("rank0/trace.json", "rank1/trace.json"),
        ("iteration_5/rank0_trace.json", "iteration_5/rank1_trace.json"),
        ("node-12/worker0.1699.pt.trace.json", "node-13/worker1.1699.pt.trace.json"),
        ("gpu7_rank0.json", "gpu6_rank1.json"),
        ("gpu01_4711.1699999999999.pt.trace.json", "gpu02_42.1699999999998.pt.trace.json"),
    ],
)
def test_ranks_are_read_from_file_and_folder_names(tmp_path: Path, names: tuple[str, ...]) -> None:
    for rank, name in enumerate(names):
        path = tmp_path / "job" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(without_rank(rank))
    assert ranks_of(tmp_path / "job") == [0, 1]
    assert world_of(tmp_path / "job").lateness.late_rank is not None


def written(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"rank1.json": 1, "rank0.json": 0}, "the same rank; ranks are taken from the file names"),
        ({"rank0.json": 1, "rank1.json": 0}, "ranks are taken from the file names"),
        ({"b_1.16999999999.pt.trace.json": 1, "a_7.16999999999.pt.trace.json": 0}, "in the order"),
        ({"a/rank0.json": 0, "b/rank0.json": 1}, "ranks are numbered in the order of file names"),
    ],
)
def test_files_that_state_the_same_rank_are_numbered_by_name(
    tmp_path: Path, names: dict[str, int], said: str
) -> None:
    texts = {name: document(rank_events(process), 0) for name, process in names.items()}
    found = read_recording(written(tmp_path, texts))
    assert found is not None
    assert [str(found.traces[rank].path) for rank in (0, 1)] == sorted(names)
    assert any(said in text for text in found.problems)
    assert not any("steps that other files" in text for text in found.problems)


def test_copies_without_communication_count_as_one_rank(tmp_path: Path) -> None:
    alone = [e for e in rank_events(1) if "AllReduce" not in e["name"]]
    texts = {f"{name}.json": document(alone, 1) for name in ("a", "b")}
    texts["c.json"] = document(rank_events(0), 0)
    found = read_recording(written(tmp_path, texts))
    assert found is not None
    assert sorted(found.traces) == [0, 1]


def test_a_copy_of_a_long_recording_is_recognised_quickly() -> None:
    short = recorded_rank("a", read_events(io.BytesIO(document(rank_events(0), 0).encode())))
    calls = [replace(short.calls[0], begin_ns=n, end_ns=n + 1) for n in range(20_000)]
    long = replace(short, calls=in_columns(kinds_of(short.events), calls))
    begin = time.process_time()
    assert of_one_process(long, long)
    assert time.process_time() - begin < 1


def test_output_bytes_are_derived_from_the_ranks_of_the_job(tmp_path: Path) -> None:
    around: Event = annotation("nccl:_all_gather_base", 10, 20)
    around["args"] = {"Input Dims": [[25]], "Input type": ["float"]}
    events = [around, launched(7, 11), kernel("nccl", 20, 40, correlation=7)]
    texts = {f"rank{rank}.json": json.dumps({"traceEvents": events}) for rank in range(3)}
    found = read_recording(written(tmp_path, texts))
    assert found is not None
    calls = columns.collectives(found.traces[0])
    assert (calls.bytes_in.tolist(), calls.bytes_out.tolist()) == ([100], [300])


def test_truncated_or_extended_gzip_files_are_read_as_far_as_possible(
    tmp_path: Path,
) -> None:
    whole = gzip.compress(document(rank_events(0, steps=400), 0).encode())
    (tmp_path / "long.json.gz").write_bytes(whole + b"and more")
    assert world_of(tmp_path / "long.json.gz").timing.steps == 400
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    cut = world_of(tmp_path / "cut.json.gz")
    assert 50 < cut.timing.steps < 350
    assert any("cut off" in text for text in cut.recording.problems)


def test_other_files_in_an_archive_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("job/", "")
        packed.writestr("job/README.md", "# Traces")
        packed.writestr("job/metrics.json", "{}")
        packed.writestr("__MACOSX/._rank0.json", b"\0\5\26\7")
        for rank in (0, 1):
            packed.writestr(f"job/rank{rank}.json", document(rank_events(rank), rank))
    assert ranks_of(path) == [0, 1]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclDevKernel_Broadcast_RING_LL(x)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32", "all_reduce"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("void mscclKernel_Sum_half_Simple<false>(ncclDevComm*)", "other"),
        ("oneccl_allreduce_pcie_fp32", "all_reduce"),
        ("rcclKernel_AllToAllPivot(x)", "all_to_all"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<x>(x)", "all_reduce"),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, false>(x)", "all_reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<x>", "all_reduce"),
        # This kernel waits for the second half of an all-reduce, and is no call of its own.
        ("void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport_fusion<x>(x)", "other"),
        ("void sglang::all_reduce_1shot_push_kernel<x>(sglang::Params)", "all_reduce"),
        (
            # In aiter's fused all-reduce, this kernel stores each rank's part on all ranks.
            "_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEvPNS_8RankDataE",
            "all_reduce",
        ),
        ("void aiter::allgather_lastdim<__half, 8>(aiter::RankData*)", "all_gather"),
        ("_all_gather_kernel_inner", "all_gather"),
        ("triton_one_shot_all_reduce_kernel", "all_reduce"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel<x>(x)", "all_reduce"),
        ("(anonymous namespace)::barrier_kernel(unsigned int**, int, int, int)", "barrier"),
        ("(anonymous namespace)::wait_signal_kernel(unsigned int**, int, int, int)", "other"),
    ],
)
def test_communication_kernels_are_recognised_by_name(name: str, op: str) -> None:
    assert is_communication(name)
    assert operation(name) == op


@pytest.mark.parametrize(
    "name",
    [
        *("ampere_sgemm", "void at::native::reduce_kernel<512>", "Memset"),
        # Inductor names a kernel after the operators that it fuses.
        *("triton_red_fused_all_gather_into_tensor_add_3", "triton_poi_fused_all_reduce_0"),
        "void at::native::vectorized_elementwise_kernel<4, all_reduce>(int)",
        "void cutlass::device_kernel<cutlass::AllReduceEpilogue>(x)",
        *("void blockAllReduce(float*)", "void warpReduceScatter<x>(x)"),
        *("all_gather_copy_in_kernel", "void aiter::local_device_load_rmsnorm<x>(x)"),
    ],
)
def test_other_kernels_are_not_taken_for_communication(name: str) -> None:
    assert kind_of(Category.KERNEL, name, is_collective=False) is EventKind.KERNEL


@pytest.mark.parametrize(
    "name",
    [
        *("void deep_ep::internode_ll::combine<true>(x)", "EpDispatchIntraNodeKernel_bf16"),
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>(int const*)",
        "void flashinfer::trtllm_alltoall::moeAllToAllKernel<x>(x)",
        *("kernel_all_gather_matmul_persistent", "void gemm_reduce_scatter<x>(x)"),
    ],
)
def test_kernels_that_communicate_without_details_are_told_apart(name: str) -> None:
    kind = kind_of(Category.KERNEL, name, is_collective=False)
    assert kind is EventKind.UNREADABLE_KERNEL


LAUNCH: Event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}


def launched(correlation: int, at_us: float) -> Event:
    return {**LAUNCH, "ts": at_us, "dur": 1, "args": {"correlation": correlation}}


def test_nested_ranges_and_operators_give_the_operation_of_a_kernel(tmp_path: Path) -> None:
    inner = annotation("nccl:_reduce_scatter_base", 10, 12)
    comms: Event = {
        **{"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1},
        **{"ts": 30, "dur": 5, "args": {"Collective name": "allgather", "dtype": "Float"}},
    }
    events = [
        *(annotation("ProfilerStep#1", 0, 200), annotation("nccl:coalesced", 8, 20), inner, comms),
        *(launched(5, 15), launched(6, 32), launched(7, 11)),
        kernel("ncclDevKernel_Generic(x)", 20, 40, 3, correlation=7),
        kernel("ncclDevKernel_Generic(x)", 50, 60, 3, correlation=6),
        kernel("ncclDevKernel_Generic(x)", 70, 80, 3, correlation=5),
    ]
    path = tmp_path / "one.json"
    path.write_text(document(events, 0, 4))
    assert {row.kind.op for row in world_of(path).communication.collectives} == {
        *("reduce_scatter_tensor", "all_gather", "other")
    }


@pytest.mark.parametrize(
    ("name", "told", "op", "root"),
    [
        ("nccl:broadcast", {"Collective name": "broadcast", "Rank": "1"}, "broadcast", 1),
        ("nccl:reduce", {"Collective name": "reduce", "Rank": 1}, "reduce", 1),
        # In an all-gather of unequal sizes, "Rank" is the recording rank.
        ("nccl:_broadcast_oop", {"Collective name": "_allgather", "Rank": "1"}, "broadcast", 0),
        ("nccl:all_reduce", {"Collective name": "allreduce", "Rank": "1"}, "all_reduce", 0),
    ],
)
def test_the_root_is_numbered_within_its_group(
    tmp_path: Path, name: str, told: Event, op: str, root: int
) -> None:
    told = {**told, "Process Group Ranks": "[1, 2, 0]", "Group size": 3}
    comms = {**annotation("record_param_comms", 5, 40), "cat": "cpu_op", "args": told}
    events = [
        comms,
        annotation(name, 8, 30),
        launched(7, 11),
        kernel("nccl", 20, 40, correlation=7),
    ]
    path = tmp_path / "one.json"
    path.write_text(document([annotation("ProfilerStep#1", 0, 200), *events], 0, 3))
    found = read_recording(path)
    assert found is not None
    calls = columns.collectives(found.traces[0])
    assert [(OPS[calls.op[0]], calls.peer[0])] == [(op, root)]


def test_a_profiler_recording_can_be_written_as_a_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = both(tmp_path / "job")
    monkeypatch.chdir(tmp_path)
    assert main(["trace", str(folder)]) == 0
    assert "from 2 of 2 ranks" in capsys.readouterr().out
    assert main(["trace", str(folder), "--world-size", "4"]) == 2
    assert "world sizes with traces: 2" in capsys.readouterr().err
    written = tmp_path / "trace_2.json.gz"
    events = json.loads(gzip.decompress(written.read_bytes()))["traceEvents"]
    waits = [e for e in events if e.get("cat") == "exposed" or "wait" in str(e.get("name"))]
    assert waits
    written.rename(folder / written.name)
    assert ranks_of(folder) == [0, 1]


def test_missing_data_for_a_prediction_are_reported_without_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(both(tmp_path / "job")), "--bucket-cap-mb", "5"]) != 0
    said = capsys.readouterr().err
    assert "synchronised backward pass" in said
    assert "Traceback" not in said


TABLE = """\
# nThread 1 nGpus 2 minBytes 4096 maxBytes 8192 step: 2(factor)
# Using devices
#  Rank  0 Group  0 Pid  1 on   a device  0 [0x01] A GPU
#  Rank  1 Group  0 Pid  1 on   a device  1 [0x02] A GPU
#
# size count type redop root time algbw busbw #wrong time algbw busbw #wrong
# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)
  4096 1024 float sum -1 20.5 0.20 0.20 0 21.0 0.20 0.20 N/A
  8192 2048 float sum -1 30.5 0.20 0.20 0 31.0 0.20 0.20 N/A
# Avg bus bandwidth : 0.2
"""


def test_a_nccl_tests_log_with_several_results_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "all.log"
    path.write_text(f"$ ./all_reduce_perf -g 2\n{TABLE}$ ./build/all_reduce_perf -g 2\n{TABLE}")
    (log,) = read_nccl_tests(path)
    assert (log.op, log.ranks, len(log.rows)) == ("all_reduce", 2, 8)
    path.write_text(f"./all_reduce_perf\n{TABLE}./build/reduce_scatter_perf\n{TABLE}")
    assert [(log.op, len(log.rows)) for log in read_nccl_tests(path)] == [
        *(("all_reduce", 4), ("reduce_scatter", 4))
    ]
    plain = TABLE.replace(" sum ", " none ").replace("redop", "op")
    other_hosts = TABLE.replace("on   a device  1", "on   b device  1")
    for other, said in (
        (f"./all_reduce_perf\n{TABLE}broadcast\n{plain}", "2 results and does not name"),
        (f"./all_reduce_perf\n{TABLE}./all_reduce_perf\n{other_hosts}", "numbers of hosts"),
    ):
        path.write_text(other)
        with pytest.raises(CommprofError, match=said):
            read_nccl_tests(path)


@pytest.mark.parametrize(
    "label",
    [
        *("nccl-launcher: ", "0: ", "2026-05-01T10:00:00.1{}Z ", "", "[1,0]<stdout>:"),
        *("[prterun-node-3@1,0]<stdout>: ", "2026-05-01T10:00:00.1{}Z [1,0]<stdout>:"),
    ],
)
def test_labels_of_launchers_before_nccl_tests_lines_are_ignored(
    tmp_path: Path, label: str
) -> None:
    path = tmp_path / "all_reduce.log"
    lines = [label.format(at) + line for at, line in enumerate(TABLE.splitlines())]
    path.write_text("\n".join(lines))
    (log,) = read_nccl_tests(path)
    assert (log.op, log.ranks, [row.time_us for row in log.rows]) == (
        *("all_reduce", 2, [20.5, 21.0, 30.5, 31.0]),
    )


REDUCED, ROOTED = "float sum -1", "float -1"
BOTH = [("out_of_place", 20.5), ("in_place", 21.0)]
OUT, IN = "  20.5  0.20  0.20    0", "  21.0  0.20  0.20  N/A"


@pytest.mark.parametrize(
    ("row", "results"),
    [
        (f"4096 1024 {REDUCED}{OUT}{IN}", BOTH),
        # nccl-tests may leave the redop cell empty if a test reduces nothing.
        (f"4096 1024 {ROOTED}{OUT}{IN}", BOTH),
        (f"4096 1024 {REDUCED}{' ' * len(OUT)}{IN}", [("in_place", 21.0)]),
        (f"4096 1024 {REDUCED}{OUT}", [("out_of_place", 20.5)]),
        (f"4096 1024 {REDUCED}{OUT}{IN[:-9]}", [("out_of_place", 20.5)]),
        (
            f"4096 1024 {REDUCED}{OUT}{IN}  2026-05-01 10:00:00",
            BOTH,
        ),
        (
            f"4096 1024 {REDUCED} 1.2e+06  0.20  0.20    0{IN}",
            [("out_of_place", 1.2e6), ("in_place", 21.0)],
        ),
        (f"4096 1024 {REDUCED}", []),
    ],
)
def test_nccl_tests_rows_with_missing_cells_are_read_as_far_as_possible(
    tmp_path: Path, row: str, results: list[tuple[str, float]]
) -> None:
    columns = f"{'size count type redop root':<13}" + "  time algbw busbw #wrong" * 2
    lines = [line for line in TABLE.splitlines() if not line.startswith((" ", "# size", "# (B)"))]
    path = tmp_path / "all_reduce.log"
    path.write_text("\n".join([*lines, f"# {columns}", f"   {row}"]))
    if results:
        (log,) = read_nccl_tests(path)
        assert [(each.placement, each.time_us) for each in log.rows] == results
        assert len(read_points(path).points) == 1
    else:
        with pytest.raises(CommprofError, match="has no rows"):
            read_nccl_tests(path)


def test_dumps_in_one_nested_folder_are_found(tmp_path: Path) -> None:
    write_dumps(tmp_path, dump({"0": [0, 1]}, entry("0", 2)), dump({"0": [0, 1]}))
    inside = tmp_path / "job" / "dumps"
    inside.mkdir(parents=True)
    for rank, path in enumerate(sorted(p for p in tmp_path.iterdir() if p.is_file())):
        path.rename(inside / f"nccl_trace_rank_{rank}_of_the_job.pkl")
    assert is_flight_recorder(tmp_path / "job")
    assert [one.rank for one in diagnosis(tmp_path / "job").culprits] == [1]
    other = tmp_path / "job" / "more"
    other.mkdir()
    (other / "dump_0").write_bytes(next(inside.iterdir()).read_bytes())
    with pytest.raises(TraceError, match=r"dumps in several folders; give only one: .*more"):
        diagnosis(tmp_path / "job")


def test_a_wrong_command_for_a_recording_names_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, dumps = tmp_path / "logs", tmp_path / "dumps"
    logs.mkdir()
    dumps.mkdir()
    (logs / "all_reduce.log").write_text(TABLE)
    write_dumps(dumps, dump({"0": [0, 1]}, entry("0", 2)), dump({"0": [0, 1]}))
    for arguments, said in (
        (["report", logs / "all_reduce.log"], "commprof fit and commprof compare read it"),
        (
            ["report", logs],
            "give its files, not the directory, to commprof fit or commprof compare",
        ),
        (["trace", dumps], "holds Flight Recorder dumps: commprof report reads them"),
    ):
        assert main([str(each) for each in arguments]) != 0
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_unreadable_folders_are_skipped_in_the_search_for_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, other = tmp_path / "job" / "locked", tmp_path / "job" / "other"
    locked.mkdir(parents=True)
    other.mkdir()
    write_dumps(other, dump({"0": [0, 1]}, entry("0", 2)), dump({"0": [0, 1]}))
    list_folder = Path.iterdir

    def listed(folder: Path) -> Iterator[Path]:
        if folder == locked:
            raise PermissionError(13, "Permission denied", str(folder))
        return list_folder(folder)

    monkeypatch.setattr(Path, "iterdir", listed)
    assert not is_flight_recorder(locked)
    assert is_flight_recorder(tmp_path / "job")


def test_shortened_and_textual_metadata_of_collectives_are_read(tmp_path: Path) -> None:
    event = all_reduce(10, 20, seq=1)
    event["args"] |= {"Process Group Ranks": "[0, 1, ..., 1022, 1023]", "In msg nelems": "1000"}
    event["args"] |= {"Group size": 1024, "Process Group Name": "7"}
    path = tmp_path / "one.json"
    path.write_text(document([annotation("ProfilerStep#1", 0, 100), event], 0, 1024))
    (row,) = world_of(path).communication.collectives
    assert (row.kind.op, row.kind.size_bytes[0]) == ("all_reduce", 4000)
