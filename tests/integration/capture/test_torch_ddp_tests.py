"""Some of PyTorch's own DDP tests, with commprof attached; ``benchmarks/torch_ddp_tests.py`` runs
all of them, with and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TESTS = (
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_static_graph_api_cpu",
    "DdpComparisonTest.test_ddp_comparison",
)


@pytest.mark.parametrize("name", TESTS)
def test_passes_with_commprof_attached(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.ranks.capture.torch_ddp_runner", name],
        cwd=ROOT,
        env={
            **os.environ,
            **{"BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": str(tmp_path)},
            **{"OMP_NUM_THREADS": "1", "COMMPROF_TEST_TRACES": str(tmp_path / "traces")},
        },
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout.split()[-1:] == ["passed"], done.stderr
    ranks = 4 if name.startswith("DdpComparisonTest") else 2
    assert f"{ranks} traces" in done.stderr
