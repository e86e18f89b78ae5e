from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.collectives.traffic import bus_factor
from commprof.commands import main
from commprof.forecast.microbench.operations import OPERATIONS
from tests.support.machines.commands import call, finish, start

pytestmark = pytest.mark.slow

MICROBENCH = ("-m", "commprof.microbench")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SIZES = ("-b", "1K", "-e", "64K", "-f", "64")
FEW = ("-n", "2", "-w", "1")
PATIENCE_S = 180


def result_of(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("swept") / "deep" / "result.json"
    done = call(
        *MICROBENCH, *OPERATIONS, "--hook", "int8", "--nproc", "2,3", *SIZES, *FEW,
        "--json", str(path), timeout_s=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, result_of(path)


def test_every_operation_is_measured_at_every_size_with_correct_results(swept: Any) -> None:
    _, result = swept
    rows = result["rows"]
    assert result["problems"] == []
    assert list(dict.fromkeys(row["op"] for row in rows)) == [*OPERATIONS, "hook:int8"]
    for name, kind in OPERATIONS.items():
        for ranks in (2, 3):
            found = [row for row in rows if (row["op"], row["world_size"]) == (name, ranks)]
            sizes = 2 if kind.sized else 1
            assert len(found) == sizes * len(kind.placements), (name, ranks)
    assert {row["wrong"] for row in rows if row["op"] != "barrier"} == {0}
    assert {row["wrong"] for row in rows if row["op"] == "barrier"} == {None}


def test_figures_follow_from_the_samples(swept: Any) -> None:
    for row in swept[1]["rows"]:
        assert len(row["samples_us"]) == row["iterations"] == sum(row["round_iterations"]) == 2
        assert row["min_us"] == min(row["samples_us"]) > 0
        assert row["max_us"] == max(row["samples_us"])
        assert row["skew_us"] >= 0
        if row["op"] in ("all_reduce", "all_gather"):
            factor = bus_factor(row["op"], row["world_size"])
            assert math.isclose(
                row["busbw_gb_per_s"],
                row["size_bytes"] / row["time_us"] / 1e3 * factor,
                rel_tol=0.01,
            )


def test_the_result_records_command_backend_and_machine(swept: Any) -> None:
    context = swept[1]["context"]
    assert context["command"].startswith("commprof microbench all_reduce")
    assert context["backend"] == "gloo"
    assert (context["sync"], context["hosts"]) == ("barrier", 1)
    assert context["machine"]["usable_cpu_count"] == len(os.sched_getaffinity(0))
    assert "lo" in [one["name"] for one in context["machine"]["interfaces"]]


def test_the_table_holds_nccl_tests_columns(swept: Any) -> None:
    done, result = swept
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    sizes = {(row["op"], row["world_size"], row["size_bytes"]) for row in result["rows"]}
    assert len(lines) == len(sizes)
    assert all(len(line.split()) == 13 for line in lines)
    assert done.stdout.count("# Out of bounds values : 0 OK") == 2 * len(OPERATIONS)


def test_overlap_is_measured_and_shown_in_the_columns_of_imb(tmp_path: Path) -> None:
    path = tmp_path / "overlap.json"
    done = call(
        *MICROBENCH,
        "all_reduce",
        "--nproc",
        "2",
        *SIZES,
        *FEW,
        "--overlap",
        "--json",
        str(path),
        timeout_s=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    result = result_of(path)
    assert result["rows"] == []
    for row in result["overlap_rows"]:
        longest = max(row["pure_us"], row["compute_us"])
        assert row["overlapped_us"] >= row["compute_us"] > 0
        assert 0 <= row["overlap"] <= 1
        assert longest > 0
        assert row["wrong"] == 0
    assert "t_pure" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_reduced",), "unknown operation 'all_reduced'"),
        (("all_reduce", "-b", "1M", "-e", "1K"), "-b 1048576 to -e 1024 bytes are not possible"),
        (("all_reduce", "--nproc", "many"), "--nproc 'many' is not a number of ranks"),
        (("all_reduce", "--backend", "smoke"), "backend 'smoke' is not available"),
        (("all_reduce", "--nproc", "2000"), "2000 ranks with sizes up to 134217728 bytes need"),
        (("--hook", "zip"), "unknown compressor 'zip'"),
        ((), "nothing to measure"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main(["microbench", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert words in error


def rank_process(temporary: Path, rank: int) -> int | None:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            log = os.readlink(entry / "fd/2")
        except OSError:
            continue
        if log.startswith(str(temporary)) and log.endswith(f"rank_{rank}.err"):
            return int(entry.name)
    return None


def kill_after_the_first_row(process: subprocess.Popen[str], temporary: Path) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not list(temporary.glob("commprof-microbench-*/result.json")):
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.02)
    victim = rank_process(temporary, 1)
    assert victim is not None
    os.kill(victim, signal.SIGKILL)


def test_a_dead_rank_ends_the_sweep_with_one_error_line_and_keeps_finished_rows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "result.json"
    process = start(
        *MICROBENCH, "all_reduce", "--nproc", "2", *SIZES, "-n", "1000",
        "--json", str(path), TMPDIR=str(tmp_path),
    )  # fmt: skip
    kill_after_the_first_row(process, tmp_path)
    done = finish(process, PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "rank 1 failed: its process was ended by SIGKILL" in done.stderr
    result = result_of(path)
    assert 1 <= len(result["rows"]) <= 4  # The first round writes rows one by one.
    assert all(100 <= row["iterations"] < 1000 for row in result["rows"])
    (problem,) = result["problems"]
    assert problem.startswith("rank 1 failed")
    assert "# Cut short: rank 1 failed" in done.stdout


def test_microbench_runs_under_torchrun_with_the_commprof_backend(tmp_path: Path) -> None:
    path = tmp_path / "shm.json"
    done = call(
        *TORCHRUN, *MICROBENCH, "all_reduce", "reduce_scatter", "all_gather", *SIZES, *FEW,
        "--backend", "commprof", "-d", "bfloat16", "-o", "max", "--json", str(path),
        OMP_NUM_THREADS="1", timeout_s=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = result_of(path)["rows"]
    assert len(rows) == 3 * 2 * 2
    assert {(row["backend"], row["dtype"], row["wrong"]) for row in rows} == {
        ("commprof", "bfloat16", 0)
    }
    assert {row["redop"] for row in rows if row["op"] != "all_gather"} == {"max"}
    assert done.stdout.count("# all_reduce, 2 ranks") == 1
