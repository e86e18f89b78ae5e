"""Files of other programs are refused by their names; recordings are named after directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from commprof.commands import main
from commprof.recordings.other_tools import other_tool
from tests.support.builders.profiler_traces import both

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
    ("osu.txt", OSU, "is a result of the OSU Micro-Benchmarks, which do not tell how many ranks"),
    ("train.log", DEEPSPEED, "is a log of DeepSpeed's communication logger, which rounds sizes"),
    (
        "imb.out",
        "#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part\n",
        "is a result of the Intel MPI Benchmarks",
    ),
    (
        "nccom.txt",
        "     size(B)    count(elems)     type    time(us)    algbw(GB/s)    busbw(GB/s)\n",
        "is a result of nccom-test (AWS Neuron), which does not tell how many ranks",
    ),
    ("m.log", "[1,0]<stdout>:# Initializing MSCCL++\n", "is a result of mscclpp-test"),
    ("ib.txt", " #bytes     #iterations    BW peak[MB/sec]\n", "is a result of perftest"),
    (
        "hccl.log",
        "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n",
        "is a result of hccl_test (Ascend), which does not tell how many ranks",
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
]


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
