from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from commprof.commands import main
from commprof.recordings.other_tools import other_tool
from tests.support.builders.profiler_traces import annotation, both, document

OSU = """\
srun: job 12 queued and waiting for resources

# OSU MPI-CUDA Allreduce Latency Test v7.0
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
1048576               630.58            619.50            642.46         10
"""
DEEPSPEED = (
    "epoch 1 loss 2.5\n" * 100_000
    + """\
Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)
all_reduce
                    2.0 KB              146                 11.12               0.08
"""
)
OTHERS = [
    ("osu.txt", OSU, "is a result of the OSU Micro-Benchmarks, which do not say how many ranks"),
    ("train.log", DEEPSPEED, "is a log of DeepSpeed's communication logger, which rounds sizes"),
    (
        "verbose.log",
        "[2026-11-30 19:40:01,123] [INFO] [logging.py:107:log_dist] [Rank 0] comm op: all_reduce | "
        "[Caller Func: train_batch] | time (ms): 1049.29 | msg size: 1.0 MB | "
        "algbw (Gbps): 0.02 | busbw (Gbps): 0.01\n",
        "does not name ranks or hosts, and in version 0.19.8 adds to each call the times of all "
        "earlier calls",
    ),
    (
        "imb.out",
        "#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part\n",
        "is a result of the Intel MPI Benchmarks",
    ),
    (
        "nccom.txt",
        "     size(B)    count(elems)     type    time(us)    algbw(GB/s)    busbw(GB/s)\n",
        "is a result of nccom-test (AWS Neuron), which does not say how many ranks",
    ),
    ("m.log", "[1,0]<stdout>:# Initializing MSCCL++\n", "is a result of mscclpp-test"),
    ("ib.txt", " #bytes     #iterations    BW peak[MB/sec]\n", "is a result of perftest"),
    (
        "hccl.log",
        "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n",
        "is a result of hccl_test (Ascend), which does not say how many ranks",
    ),
    (
        "ras.txt",
        "NCCL version 2.28.3\n\nJob summary\n===========\n\n  Nodes  Processes         GPUs\n",
        "is a status of a job by NCCL's RAS (ncclras), which shows ranks and counts of calls",
    ),
    (
        "ras.json",
        '{"nccl_version": "2.28.9",\n "communicators_count": 1, "communicators": []}',
        "is a status of a job by NCCL's RAS (ncclras)",
    ),
    (
        "oneccl.txt",
        "# Benchmarking: allreduce\n#bytes  #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]"
        "  stddev[%]\n",
        "is a result of oneCCL's benchmark, which does not say on which hosts",
    ),
    (
        "imb2.txt",
        "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n",
        "is a result of the Intel MPI Benchmarks",
    ),
    ("gaudi.txt", "[BENCHMARK] hcclAllReduce(count=8)\n", "is a result of hccl_demo (Intel Gaudi)"),
    ("param.txt", "\tCOMMS-RES\tsize (B)\n", "is a result of param's comms benchmark"),
    (
        "ds.txt",
        "---- Performance of all_reduce on 16 devices ----\n",
        "is a result of DeepSpeed's communication benchmarks",
    ),
    (
        "et.json",
        '{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": []}',
        "is an execution trace (PyTorch's observer, Chakra), which has no times at which kernels",
    ),
    (
        "horovod.json",
        '[\n{"name": "process_name", "ph": "M", "pid": 1},\n{"name": "NEGOTIATE_ALLREDUCE"}',
        "is a timeline of Horovod",
    ),
    ("workload.json", '{\n  "workload_graph": []}', "is an execution trace"),
    ("chakra.0.et", "\x12\x10\x0a\x06schema2\x051.0.1", "is an execution trace"),
    ("ras2.txt", "Communicators... (2)\n", "is a status of a job by NCCL's RAS"),
    ("ds2.log", "comm op: all_reduce | time (ms): 0.5\n", "is a log of DeepSpeed's"),
    (
        "results.json",
        '{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}}]}',
        "is a recording of rocprofv3, not a trace of torch.profiler",
    ),
    (
        "ucc.log",
        "       Count        Size                Time, us                 Bandwidth, GB/s\n"
        "                                 avg         min         max         avg\n",
        "is a result of ucc_perftest, which does not say how many ranks took part",
    ),
    (
        "bench.txt",
        "The average bandwidth of all_reduce over 16 ranks (5 warmups / 20 trials):\n",
        "is a result of all_reduce_bench.py, which rounds times and does not name hosts",
    ),
    ("links.txt", "nvbandwidth Version: v0.8\n", "is a result of a test of copies between GPUs"),
    (
        "p2p.txt",
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nDevice: 0, NVIDIA A100\n",
        "which measures links, not a collective",
    ),
    (
        "gpu0.prom",
        '# HELP nccl\nnccl_p2p_bus_bandwidth_gbs{version="v5.1",node="a"} 5.5\n',
        "is a file of NCCL Inspector's metrics for Prometheus, which hold means over many calls",
    ),
    (
        "dedicated_log_torch_trace_rank_0.log",
        'V1 utils.py:5] {"chromium_event": {}, "has_payload": "0123456789abcdef0123456789abcdef"}',
        "is a log of torch.compile (TORCH_TRACE), which has no times at which collectives ran",
    ),
    (
        "profile.txt",
        "         Name    Self CPU %      Self CPU   CPU total %     CPU total\n",
        "is a table of torch.profiler (key_averages), which has sums over calls",
    ),
    (
        "stats.txt",
        " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n",
        "is a table of Nsight Systems, not a trace of torch.profiler",
    ),
    (
        "trace.csv",
        "Start (ns),Duration (ns),CorrId,GrdX\n1,2,3,4\n",
        "is a table of Nsight Systems, not a trace of torch.profiler",
    ),
    ("job.pftrace.gz", "binary", "is a trace of Perfetto in its binary form"),
    ("job.nsys-rep", "binary", "is a recording of Nsight Systems, not a trace of torch.profiler"),
    (
        "job.sqlite",
        "SQLite format 3\0 CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "is an export of Nsight Systems, not a trace of torch.profiler",
    ),
]
NCCL_LOG = """\
NCCL version 2.20.5+cuda12.4
node1:71:71 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
node1:71:90 [0] NCCL INFO comm 0x55aa rank 0 nranks 8 cudaDev 0 busId 46000 - Init COMPLETE
node1:72:91 [1] NCCL INFO comm 0x55bb rank 1 nranks 8 cudaDev 1 busId 47000 - Init COMPLETE
node1:71:71 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f count 1 datatype 7 op 0 root 0
node1:71:71 [0] NCCL INFO AllGather: opCount 1 sendbuff 0x7f count 1 datatype 7 op 0 root 0 \
comm 0x55 [nranks=4] stream 0x1
node1:71:71 [0] NCCL INFO AllReduce: opCount 2 sendbuff 0x7f count 1 datatype 7 op 0 root 0

node1:72:91 [1] misc/socket.cc:57 NCCL WARN socketProgress: Connection closed by remote peer
node1:72:91 [1] misc/socket.cc:57 NCCL WARN another one
"""
WATCHDOG = (
    NCCL_LOG
    + """\
[rank1]:[E1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600029 ms
"""
)
FAILED = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20
node1:71:71 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
#  Rank  0 Group  0 Pid     71 on      node1 device  0 [0x01] NVIDIA A100
node1: Test NCCL failure common.cu:1012 'unhandled system error / '
 .. node1 pid 71: Test failure common.cu:891
"""


def _refusal(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", str(path)]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "no command reads it (commprof report reads traces of torch.profiler" in line
    return line


def test_a_log_of_nccl_is_named_with_what_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(NCCL_LOG)
    line = _refusal(path, capsys)
    assert "is a log with lines of NCCL (NCCL_DEBUG), which has no times" in line
    assert (
        "it shows NCCL 2.20.5+cuda12.4, 2 initialisations of communicators of 8 ranks, "
        "3 calls (2 AllReduce, 1 AllGather) in communicators of 4 ranks, 2 warnings, the first "
        '"socketProgress: Connection closed by remote peer"'
    ) in line
    packed = tmp_path / "nccl.log.gz"
    packed.write_bytes(gzip.compress(NCCL_LOG.encode()))
    assert "2 initialisations of communicators of 8 ranks" in _refusal(packed, capsys)


def test_a_job_that_the_watchdog_stopped_is_sent_to_its_dumps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(WATCHDOG)
    line = _refusal(tmp_path / "train.log", capsys)
    assert "torch's watchdog stopped WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=5" in line
    assert "the Flight Recorder dumps of all ranks show which ranks were waited for" in line
    assert "train.log is a job's log" in _refusal(tmp_path, capsys)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[{"name": "Group API", "cat": "GROUP_API", "ph": "b", "pid": 1, "ts": 1.5}]',
            "is a timeline of NCCL's example profiler plugin",
        ),
        (
            '{"traceEvents": [{"ph": "B", "cat": "GPU", "name": "NPKIT_EVENT_SEND_ENTRY"}]}',
            "is a timeline of NPKit, which shows what happens inside NCCL's kernels",
        ),
    ],
)
def test_a_timeline_of_what_nccl_does_is_no_trace_of_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(text)
    assert said in _refusal(path, capsys)
    assert main(["fit", str(path), "--output", str(tmp_path / "profile.json")]) != 0
    assert said in capsys.readouterr().err


def test_a_timeline_of_unitrace_is_no_trace_of_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """unitrace uses torch's category ``cpu_op`` for calls of MPI and Level Zero."""
    event = {**annotation("zeCommandListAppendLaunchKernel", 1, 2), "cat": "cpu_op"}
    host = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "RANK 0 HOST<node1>"}}
    path = tmp_path / "python.7.0.json"
    path.write_text(json.dumps({"traceEvents": [host, event]}))
    assert main(["report", str(path)]) != 0
    assert "it is not a trace of torch.profiler: its processes are RANK 0 HOST<node1>" in (
        capsys.readouterr().err
    )
    assert main(["fit", str(path), "--output", str(tmp_path / "profile.json")]) != 0
    assert "is a timeline of unitrace (Intel), not a trace of" in capsys.readouterr().err


def test_a_snapshot_of_memory_is_no_dump_of_flight_recorder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rank_0_snapshot.pickle"
    for protocol in (2, 5):
        snapshot = {"segments": [{"address": 1}] * 900, "device_traces": [[]]}
        path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
        assert "is a snapshot of torch's memory (torch.cuda.memory)" in _refusal(path, capsys)
    transcript = {"segments": [{"start": 0.0, "text": "a"}] * 900, "language": "en"}
    path.write_bytes(pickle.dumps(transcript))
    assert main(["report", str(path)]) != 0
    assert "snapshot of torch" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "test_text",
    [
        "nvbandwidth Version: v0.8\n",
        "The average bandwidth of all_reduce over 16 ranks (5 warmups / 20 trials):\n",
        "#bytes #iterations BW peak[Gb/sec]\n",
    ],
)
def test_a_test_before_a_job_does_not_hide_what_stopped_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], test_text: str
) -> None:
    path = tmp_path / "train.log"
    path.write_text(test_text + "step 1\n" * (1 << 18) + WATCHDOG)
    assert "torch's watchdog stopped WorkNCCL(SeqNum=7" in _refusal(path, capsys)


def test_a_table_in_a_job_s_log_does_not_hide_what_stopped_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    table = "  Name    Self CPU %      Self CPU   CPU total %     CPU total\n"
    path.write_text(table + WATCHDOG)
    assert "torch's watchdog stopped WorkNCCL(SeqNum=7" in _refusal(path, capsys)
    path.write_text(table + NCCL_LOG)
    assert "is a log with lines of NCCL (NCCL_DEBUG)" in _refusal(path, capsys)


def test_a_failed_run_of_nccl_tests_is_no_log_of_nccl_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(FAILED)
    said = "Test NCCL failure common.cu:1012 'unhandled system error / '"
    line = _refusal(path, capsys)
    assert f'is the text of an nccl-tests run without any result: "{said}"' in line
    path.write_text(FAILED.split("node1: Test")[0])
    assert "it failed or was cut off before its first result" in _refusal(path, capsys)
    header = (
        "#             out-of-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    )
    path.write_text(FAILED.replace("node1: Test", f"{header}node1: Test"))
    assert main(["fit", str(path), "--output", str(tmp_path / "profile.json")]) != 0
    assert f'the run failed ("{said}")' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\x28\xb5\x2f\xfd", "is compressed by zstd, and must be unpacked first (zstd -d)"),
        (b"\xfd7zXZ\0", "is compressed by xz, and must be unpacked first (xz -d)"),
        (b"BZh9", "is compressed by bzip2, and must be unpacked first (bzip2 -d)"),
    ],
)
def test_other_compressions_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: bytes, said: str
) -> None:
    path = tmp_path / "rank0.json.packed"
    path.write_bytes(head + bytes(range(256)))
    assert said in _refusal(path, capsys)


@pytest.mark.parametrize(("name", "text", "said"), OTHERS)
def test_other_tools_are_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    for command, more in (
        (["fit", str(path)], "commprof fit and compare read the JSON of commprof microbench"),
        (["compare", str(path), str(path)], "what nccl-tests and rccl-tests print or write"),
        (["report", str(path)], "no command reads it"),
    ):
        assert main(command) != 0
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        assert more in line


def test_a_trace_of_torch_profiler_is_sent_to_its_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = both(tmp_path / "job")
    path = min(folder.iterdir())
    assert main(["fit", str(path)]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a trace of torch.profiler: give its directory to commprof fit" in line


def test_a_log_of_nccl_inspector_is_sent_to_its_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node-pid7.log"
    header = '{"header": {"id": "0xa", "rank": 0, "n_ranks": 2}, '
    path.write_text(header + '"coll_perf": {"coll": "AllReduce", "coll_sn": 3}}\n')
    assert main(["predict", str(path)]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds logs of NCCL Inspector: commprof report, fit, compare and top read them" in line


def test_a_source_file_is_no_other_tool(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nprint('size count type time')\n")
    assert other_tool(path) == ""
    assert other_tool(tmp_path / "missing") == ""


@pytest.mark.parametrize("given", [".", "./", "../job", "../job/", "below/..", "below/../"])
def test_a_recording_has_its_directorys_name_however_it_is_given(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: str,
) -> None:
    folder = both(tmp_path / "job")
    (folder / "below").mkdir()
    monkeypatch.chdir(folder)
    assert main(["report", given]) == 0
    assert "Recording: job [nccl]\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["NEGOTIATE_ALLREDUCE", "host:1:2 [0] NCCL INFO Init COMPLETE"])
def test_a_trace_whose_names_are_words_of_other_tools_is_torch_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(document([annotation(name, 5e9, 5e9 + 10)], 0))
    assert main(["fit", str(path)]) != 0
    assert "is a trace of torch.profiler: give its directory" in capsys.readouterr().err
    assert main(["report", str(path)]) != 0
    text = capsys.readouterr().err
    assert "Horovod" not in text
    assert "a log with lines of NCCL" not in text
