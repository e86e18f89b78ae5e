"""The built-in loop on NCCL, with the one rank that one GPU allows: ddp, and fsdp with offload.

With one rank fsdp shards nothing and exchanges nothing, but with --cpu-offload it keeps parameters,
gradients and optimizer state in the host's memory all the same, and fetches them for each block.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.commands import RUN, call

pytestmark = pytest.mark.needs_gpu

#: Weights of 13 MB, four times that with gradients and Adam's moments; next to no activations.
WORKLOAD = "transformer:vocab=64,d_model=256,feedforward=1024,layers=4,sequence=8,samples=64"
STEPS = 8


def trained(directory: Path, *options: str) -> dict[str, Any]:
    """The result of a run of one rank."""
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
    # What is in the host's memory is not in the device's.
    assert 0 < offloaded["peak"] < whole["peak"]
