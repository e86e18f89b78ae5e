"""Some of PyTorch's own DDP tests, with commprof attached; ``benchmarks/torch_ddp_tests.py`` runs
all of them, with and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.commands import finish, fork

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TESTS = (
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_static_graph_api_cpu",
    "DdpComparisonTest.test_ddp_comparison",
)


@pytest.mark.parametrize("name", TESTS)
def test_passes_with_commprof_attached(name: str, tmp_path: Path) -> None:
    ranks = 4 if name.startswith("DdpComparisonTest") else 2
    process = fork(
        *("-m", "tests.support.ranks.capture.torch_ddp_runner", name),
        directory=ROOT,
        spare_count=1,  # the fork server of its ranks
        **{"BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": str(tmp_path)},
        **{"OMP_NUM_THREADS": "1", "COMMPROF_TEST_TRACES": str(tmp_path / "traces")},
    )
    done = finish(process, 150)
    assert done.stdout.split()[-1:] == ["passed"], done.stderr
    assert f"{ranks} traces" in done.stderr
