from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines.commands import RUN, call, finish, fork
from tests.support.machines.ranks import run_module
from tests.support.ranks.plain_script import LAYER_BYTES, plain_script

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("native", ["1", "0"])
def test_attach_checks_pass_on_real_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    monkeypatch.setenv("COMMPROF_NATIVE", native)
    outputs = run_module("tests.support.ranks.capture.ddp_hooks", [str(tmp_path)], 2)
    for output in outputs:
        assert output.count("COMMPROF_NATIVE=0 is set") == (native == "0")


@pytest.mark.parametrize("native", ["1", "0"])
def test_the_hook_gives_the_bits_of_ddp_except_for_views_that_are_kept(
    monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    """DDP multiplies copied gradients by 1/3, but divides gradients that are views by 3."""
    monkeypatch.setenv("COMMPROF_NATIVE", native)
    for output in run_module("tests.support.ranks.capture.hook_bits", [], 3):
        differing = json.loads(next(line for line in output.splitlines() if line[:1] == "{"))
        assert differing.pop("views, kept") > 1000
        assert differing == {"copied": 0, "copied, kept": 0, "views": 0}


@pytest.mark.slow
def test_bucket_cap_mb_limits_the_buckets_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    # The gradients take 1.05 MB and would fit into a single bucket of DDP's default size.
    script.write_text(plain_script(layers=4))
    options = ("--nproc", "2", "--bucket-cap-mb", "0.3", "--output", str(tmp_path / "run"))
    ended = call(*RUN, *options, str(script), timeout_s=120)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["context"]["bucket_cap_mb"] == 0.3
    rows = result["runs"][0]["aggregated_metrics"]["collectives"]
    buckets = [row for row in rows if row["op"] == "all_reduce"]
    assert sum(row["calls_per_step"] for row in buckets) >= 2
    # DDP closes a bucket at the first gradient that reaches the cap.
    assert max(row["size_bytes"][1] for row in buckets) <= 0.3 * 2**20 + LAYER_BYTES


ROOT = Path(__file__).parents[3]
TESTS = (
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_static_graph_api_cpu",
    "DdpComparisonTest.test_ddp_comparison",
)


@pytest.mark.parametrize("name", TESTS)
def test_torch_ddp_tests_pass_with_commprof_attached(name: str, tmp_path: Path) -> None:
    ranks = 4 if name.startswith("DdpComparisonTest") else 2
    process = fork(
        *("-m", "tests.support.ranks.capture.torch_ddp_runner", name),
        directory=ROOT,
        spare_count=1,  # A fork server starts the ranks.
        **{"BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": str(tmp_path)},
        **{"OMP_NUM_THREADS": "1", "COMMPROF_TEST_TRACES": str(tmp_path / "traces")},
    )
    done = finish(process, 150)
    assert done.stdout.split()[-1:] == ["passed"], done.stderr
    assert f"{ranks} traces" in done.stderr
