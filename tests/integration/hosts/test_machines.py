"""One job over two launchers that share a directory, as on two machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines.commands import finish, start
from tests.support.machines.ranks import free_port

pytestmark = pytest.mark.slow


def test_machine_0_reports_what_both_trained(tmp_path: Path) -> None:
    out = tmp_path / "run"
    common = ["-m", "commprof.run", "--nnodes", "2", "--nproc", "1", "--output", str(out)]
    common += ["--rdzv-endpoint", f"localhost:{free_port()}", "--workload", "timed:layers=2"]
    common += ["--steps", "4", "--overhead-steps", "0"]
    second = start(*common, "--node-rank", "1")
    first = start(*common, "--node-rank", "0")
    shown, done = finish(first), finish(second)
    assert "Machine 1 is done; machine 0 reports from" in done.stdout
    assert (first.returncode, second.returncode) == (0, 0), shown.stderr + done.stderr
    result = json.loads((out / "result.json").read_text())
    assert [run["num_processes"] for run in result["runs"]] == [2]
    assert {rank["rank"] for rank in result["runs"][0]["rank_results"]} == {0, 1}
