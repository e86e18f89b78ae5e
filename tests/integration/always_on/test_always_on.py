from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commprof import _native
from commprof.analysis.step.breakdown import breakdown
from commprof.errors import CommprofError, UsageError
from commprof.trace import columns
from commprof.trace.reader import read_trace
from commprof.trace.schema import MODES, Phase
from commprof.trace.summary import Histogram, Summary, merged_histogram
from tests.support.builders.histograms import histogram_of
from tests.support.builders.trace_bytes import metadata
from tests.support.machines.commands import call, fork, start
from tests.support.machines.ranks import free_port, run_module

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")


def same(found: Histogram, values_ns: object) -> None:
    expected = histogram_of([round(value) for value in np.asarray(values_ns).tolist()])
    assert (found.count, found.min_ns, found.max_ns) == (
        expected.count,
        pytest.approx(expected.min_ns, abs=1),
        pytest.approx(expected.max_ns, abs=1),
    )
    assert found.sum_ns == pytest.approx(expected.sum_ns, abs=found.count)


def test_the_summary_agrees_with_the_records(tmp_path: Path) -> None:
    run_module("tests.support.ranks.always_on_rank", ["both", str(tmp_path)], 2)
    for rank in (0, 1):
        trace = read_trace(tmp_path / f"rank_{rank}.trace")
        summary = trace.summary
        assert summary is not None
        assert (trace.complete, trace.problems, summary.dropped) == (True, (), 0)
        table = columns.collectives(trace)
        parts = breakdown(trace, table, None, 2)
        # Full mode begins after the first boundary, so the records lack step 0. The summary also
        # leaves step 0 out.
        assert parts.step.tolist() == list(range(1, 12))
        same(summary.steps, parts.wall_ns)
        same(summary.exposed, parts.exposed_ns)
        same(summary.phases[Phase.FORWARD], parts.work.forward_ns)
        same(summary.phases[Phase.BACKWARD], parts.work.backward_ns)
        same(summary.phases[Phase.OPTIMIZER], parts.work.optimizer_ns)
        same(summary.phases[Phase.OTHER], parts.work.other_ns)
        durations = table.end_ns - table.issue_ns
        merged = merged_histogram(one.duration for one in summary.operations)
        same(merged, durations[table.end_ns > 0])
        assert sum(one.count for one in summary.operations) == len(table)
        assert sum(one.bytes for one in summary.operations) == table.bytes_in.sum()
        waits = columns.waits(trace)
        same(
            merged_histogram(one.wait for one in summary.operations), waits.end_ns - waits.begin_ns
        )


def test_50_000_collectives_take_bounded_memory() -> None:
    done = call(str(ROOT / "benchmarks/own_cost/long_run.py"), "50000")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.split("\n\n")[0])["counted"] <= 50_000


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def modes(directory: Path) -> list[str]:
    found = (read_trace(directory / f"rank_{rank}.trace").summary for rank in (0, 1))
    return ["off" if summary is None else summary.mode for summary in found]


def recorded_steps(directory: Path, rank: int) -> int:
    return len(columns.steps(read_trace(directory / f"rank_{rank}.trace")).begin_ns)


@pytest.mark.slow
def test_the_mode_of_a_running_job_is_switched_by_file_and_by_signal(tmp_path: Path) -> None:
    stop, out = tmp_path / "stop", tmp_path / "out"
    port = str(free_port())
    ranks = [
        fork(
            *("-m", "tests.support.ranks.always_on_rank", "until", str(out), str(stop)),
            **{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"},
            **{"MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
            spare_count=0,
        )
        for rank in (0, 1)
    ]
    try:
        until(lambda: all((out / f"pid_{rank}").exists() for rank in (0, 1)))
        (out / "control").write_text("always-on\n")
        until(lambda: modes(out) == ["always-on"] * 2)
        time.sleep(0.3)
        assert [len(read_trace(out / f"rank_{r}.trace").records) for r in (0, 1)] == [0, 0]
        os.kill(int((out / "pid_1").read_text()), signal.SIGUSR2)
        until(lambda: modes(out) == ["full"] * 2)
        assert (out / "control").read_text() == "full\n"
        until(lambda: all(recorded_steps(out, rank) > 12 for rank in (0, 1)))
        (out / "control").write_text("off\n")
        until(lambda: modes(out) == ["off"] * 2)
    finally:
        stop.touch()
        endings = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], endings
    report = json.loads(call("-m", "commprof", "report", str(out), "--format", "json").stdout)
    (summary,), (world,) = report["summaries"], report["runs"]
    assert summary["ranks"] == [0, 1]
    assert summary["steps"] > world["aggregated_metrics"]["measured_steps"] > 0
    assert report["failures"] == []
    text = call("-m", "commprof", "report", str(out), "--all").stdout
    assert "From the histograms of always-on mode" in text
    assert "exposed = wait + transfer" in text


def test_a_run_in_always_on_mode_reports_without_records(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = call(
        *("-m", "commprof.run", "--mode", "always-on", "--world-sizes", "2", "--steps", "6"),
        *("--workload", "timed:late_rank=1,late_ms=3", "--output", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert "Operations at 2 ranks" in done.stdout
    assert "exposed = wait + transfer" not in done.stdout
    result = json.loads((out / "result.json").read_text())
    assert result["runs"] == result["failures"] == []
    (summary,) = result["summaries"]
    parts = ("data_ms", "forward_ms", "backward_ms", "exposed_ms", "optimizer_ms", "other_ms")
    assert sum(summary[part] for part in parts) == pytest.approx(summary["step_ms"], abs=1e-3)
    assert summary["operations"][0]["op"] == "all_reduce"
    for rank in (0, 1):
        path = out / f"world_2/rank_{rank}.trace"
        assert len(read_trace(path).records) == 0
        assert path.stat().st_size < 1_000_000


NO_OPTIMIZER = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
for _ in range(40):
    model(torch.randn(8, 64)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_steps_of_a_loop_without_an_optimizer_are_found(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "run"
    script.write_text(NO_OPTIMIZER)
    done = call(
        *("-m", "commprof.run", "--mode", "always-on", "--nproc", "2", "--output", str(out)),
        str(script),
    )
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "Step boundaries were inferred from backward passes that communicated" in said
    (summary,) = json.loads((out / "result.json").read_text())["summaries"]
    # The first 20 of the 40 backward passes only show where a step ends. The next step is warm-up.
    assert (summary["steps_end"], summary["steps"]) == ("backward", 19)
    assert summary["exposed_ms"] > 0
    assert summary["arrivals_known"] > 0
    (reduce,) = [one for one in summary["operations"] if one["op"] == "all_reduce"]
    # At two ranks, the bus bandwidth of an all-reduce equals the algorithm bandwidth.
    assert reduce["busbw_gb_per_s"] == reduce["algbw_gb_per_s"] > 0
    checks = {check["name"]: check for check in summary["cross_checks"]}
    assert checks["phases"]["agrees"]
    assert checks["ddp_exposed"]["other"] is not None


VICTIM = """
import json, sys
from commprof import _native
from commprof.trace.schema import MODES
native = _native.native
native.start(sys.argv[1], "", sys.argv[2], 1, mode=MODES.index("always-on"))
print("started", flush=True)
step = 0
native.mark_step(0, False)
while True:
    for _ in range(50):
        native.mark_step(step, True)
        step += 1
    native.flush()
"""


def test_a_killed_process_leaves_a_whole_summary(tmp_path: Path) -> None:
    for round_number in range(5):
        path = tmp_path / f"rank_{round_number}.trace"
        victim = fork("-c", VICTIM, str(path), json.dumps(metadata()), spare_count=0)
        until(lambda victim=victim: victim.output() == "started\n")
        time.sleep(0.05 + 0.0131 * round_number)
        victim.kill()
        victim.communicate()
        trace = read_trace(path)
        assert not trace.complete
        assert trace.problems == ()
        assert trace.summary is not None
        summary: Summary = trace.summary
        assert summary.mode == "always-on"
        # N boundaries enclose N - 1 steps, and the summary leaves step 0 out.
        assert summary.steps.count == max(0, summary.records - 2)
        assert path.stat().st_size < 110_000


RECORDED_TO_THE_END = """
import sys, time
import commprof
with commprof.profile(sys.argv[1], mode="always-on") as profiler:
    while True:
        time.sleep(0.005)
        print(time.monotonic_ns(), flush=True)
        profiler.step()
"""


@pytest.mark.slow
@pytest.mark.measures
def test_the_summary_of_a_killed_process_lacks_at_most_the_last_1200_ms(tmp_path: Path) -> None:
    with start("-c", RECORDED_TO_THE_END, str(tmp_path)) as victim:
        assert victim.stdout is not None
        said = [int(victim.stdout.readline())]
        while said[-1] < said[0] + 3_500_000_000:
            said.append(int(victim.stdout.readline()))
        killed_ns = time.monotonic_ns()
        victim.kill()
        victim.communicate()
    trace = read_trace(tmp_path / "rank_0.trace")
    assert trace.problems == ()
    summary = trace.summary
    assert summary is not None
    before = sum(1 for time_ns in said if time_ns < killed_ns - 1_200_000_000)
    assert before > 100
    # The summary leaves step 0 out. The victim prints a time before it marks the step, so the last
    # step may be missing.
    assert summary.steps.count >= before - 2
    assert killed_ns - summary.end_ns < 1_200_000_000


@pytest.mark.parametrize("mode", ["sometimes", "Full"])
def test_unknown_modes_and_signals_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    import commprof

    with pytest.raises(UsageError, match="allowed: off, always-on, full"):
        commprof.profile(tmp_path, mode=mode)
    monkeypatch.setenv("COMMPROF_MODE", mode)
    with pytest.raises(UsageError, match=r"COMMPROF_MODE=.*allowed: off, always-on, full"):
        commprof.profile(tmp_path)
    monkeypatch.delenv("COMMPROF_MODE")
    monkeypatch.setenv("COMMPROF_SIGNAL", "SIGKILL")
    with pytest.raises(CommprofError, match="allowed: SIGUSR2, SIGUSR1, none"):
        commprof.profile(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_commprof_run_refuses_unknown_modes(tmp_path: Path) -> None:
    wrong = call("-m", "commprof.run", "--mode", "some", "--output", str(tmp_path / "a"))
    assert wrong.returncode == 2
    assert "always-on" in wrong.stderr
    wrong = call("-m", "commprof.run", "--output", str(tmp_path / "a"), COMMPROF_MODE="some")
    assert wrong.returncode == 2
    assert "COMMPROF_MODE='some'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert not (tmp_path / "a").exists()


def test_modes_other_than_full_need_the_native_module(tmp_path: Path) -> None:
    from commprof.capture.python_recorder import PythonRecorder

    with pytest.raises(RuntimeError, match="always-on mode needs the native module"):
        PythonRecorder().start(
            str(tmp_path / "a.trace"), "", "{}", 1, mode=MODES.index("always-on")
        )
    assert not (tmp_path / "a.trace").exists()
