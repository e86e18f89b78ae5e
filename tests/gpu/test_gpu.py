from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.align.device_timeline import on_device_timeline, timed_collectives
from commprof.analysis.step.breakdown import breakdown
from commprof.forecast.microbench.operations import OPERATIONS
from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind
from tests.support.machines.commands import RUN, call
from tests.support.machines.device_runs import run_on_device

pytestmark = pytest.mark.needs_gpu

ROOT = Path(__file__).parents[2]


def run(directory: Path, *arguments: str) -> tuple[Trace, dict[str, Any]]:
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return run_on_device("tests.support.ranks.devices.gpu_script", directory, *arguments, **store)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[str, Any]]:
    return run(tmp_path_factory.mktemp("gpu"))


def test_every_collective_is_timed(recorded: tuple[Trace, dict[str, Any]]) -> None:
    trace, truth = recorded
    assert truth["dropped"] == 0
    table = columns.collectives(on_device_timeline(trace))
    issued = trace.records[trace.records["kind"] == Kind.ISSUE]
    assert timed_collectives(trace) == len(issued) == len(table)
    assert (table.end_ns > 0).all()
    assert (table.end_ns >= table.issue_ns).all()


def test_the_best_device_clock_anchor_has_an_error_below_100_us(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, _ = recorded
    anchors = trace.records[trace.records["kind"] == Kind.DEVICE_CLOCK]
    assert len(anchors) >= 1
    assert anchors["bytes_in"].min() < 100_000


@pytest.mark.measures
def test_step_times_match_device_events_recorded_by_the_test(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    moved = on_device_timeline(trace)
    parts = breakdown(moved, columns.collectives(moved), None, 1)
    steps = dict(zip(parts.step.tolist(), parts.wall_ns.tolist(), strict=True))
    expected = {int(step): ms * 1e6 for step, ms in truth["step_ms"].items() if int(step) > 1}
    measured = [steps[step] for step in expected]
    assert measured == pytest.approx(list(expected.values()), rel=0.02, abs=100_000)
    assert (parts.exposed_ns >= 0).all()
    assert (parts.exposed_ns <= parts.wall_ns).all()
    # A step's multiplications are forward time, even if the host did something else meanwhile.
    assert np.median(parts.work.forward_ns[2:]) > 0.5 * np.median(truth["compute_ms"]) * 1e6


@pytest.mark.measures
def test_a_wait_for_a_busy_communication_stream_is_exposed(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    waits = trace.records[trace.records["kind"] == Kind.DEVICE_WAIT]
    length_ms = (waits["value"] - waits["timestamp_ns"]).astype(np.float64) / 1e6
    assert length_ms.max() == pytest.approx(truth["stall_ms"], rel=0.1, abs=0.1)


def test_ddp_is_bit_identical_with_and_without_capture(tmp_path: Path) -> None:
    with_capture, without = tmp_path / "with", tmp_path / "without"
    _, captured = run(with_capture)
    without.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.ranks.devices.gpu_script", str(without), "--plain"],
        cwd=ROOT,
        env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
        timeout=400,
    )
    assert done.returncode == 0
    plain = json.loads((without / "truth.json").read_text())
    assert captured["weights"] == plain["weights"]


def test_a_captured_graph_gives_the_expected_result(recorded: tuple[Trace, dict[str, Any]]) -> None:
    _, truth = recorded
    assert truth["graph_result"] == truth["graph_expected"]


def test_every_nccl_operation_gives_correct_results_on_one_rank(tmp_path: Path) -> None:
    path = tmp_path / "nccl.json"
    ops = [name for name, kind in OPERATIONS.items() if kind.least_ranks == 1]
    done = call(
        *("-m", "commprof.microbench", *ops, "--backend", "nccl", "--nproc", "1"),
        *("-b", "1K", "-e", "1M", "-f", "32", "-n", "4", "--json", str(path)),
        timeout_s=180,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert {row["op"] for row in rows} == set(ops)
    assert {row["wrong"] for row in rows if row["op"] != "barrier"} == {0}
    assert all(row["min_us"] > 0 for row in rows)


#: The model has 13 MB of weights, 52 MB with gradients and Adam's moments, and few activations.
WORKLOAD = "transformer:vocab=64,d_model=256,feedforward=1024,layers=4,sequence=8,samples=64"
STEPS = 8


def trained(directory: Path, *options: str) -> dict[str, Any]:
    done = call(
        *(*RUN, "--backend", "nccl", "--nproc", "1", "--workload", WORKLOAD, "--batch-size", "8"),
        *("--steps", str(STEPS), "--overhead-steps", "0", "--output", str(directory), *options),
        timeout_s=300,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return result


def metrics_of(result: dict[str, Any]) -> dict[str, Any]:
    (run,) = result["runs"]
    return {**run["aggregated_metrics"], "peak": run["rank_results"][0]["device_peak_bytes"]}


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("strategies") / "ddp", "--strategy", "ddp")


def test_ddp_all_reduces_its_gradients_on_the_device(ddp: dict[str, Any]) -> None:
    assert ddp["context"]["backend"] == "nccl"
    metrics = metrics_of(ddp)
    assert len(metrics["step_losses"]) == STEPS
    checks = {check["name"]: check for check in metrics["cross_checks"]}
    assert checks["theory_all_reduce"]["ours"] > 0
    assert checks["theory_all_reduce"]["agrees"]
    assert metrics["device_timed"] == metrics["device_collectives"] > 0


def test_fsdp_with_cpu_offload_trains_like_ddp(ddp: dict[str, Any], tmp_path: Path) -> None:
    offloaded = metrics_of(trained(tmp_path / "offloaded", "--strategy", "fsdp", "--cpu-offload"))
    whole = metrics_of(trained(tmp_path / "whole", "--strategy", "fsdp"))
    expected = metrics_of(ddp)["step_losses"]
    for metrics in (offloaded, whole):
        assert metrics["step_losses"] == pytest.approx(expected, rel=1e-3)
        assert metrics["weights_differ"] == []
    assert 0 < offloaded["peak"] < whole["peak"]
