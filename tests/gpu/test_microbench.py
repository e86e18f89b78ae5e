"""The sweep on NCCL, with the one rank that one GPU allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commprof.microbench.operations import OPERATIONS
from tests.support.machines.commands import call

pytestmark = pytest.mark.needs_gpu


def test_every_operation_of_one_rank_is_right(tmp_path: Path) -> None:
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
