from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from commprof.commands import main
from commprof.trace.reader import read_trace
from tests.support.machines.commands import RUN, call

pytestmark = pytest.mark.slow

CONFIG = """\
overhead-steps: 0
pin: cores
steps: 1000
"""
SMALL = [
    *("--workload", "transformer:sequence=16,d_model=32,heads=2,layers=1,feedforward=32,vocab=64"),
    *("--nproc", "2", "--batch-size", "4", "--steps", "6"),
]
ROOT = Path(__file__).parents[3]
SECRET = "do-not-write-me-down"


class Run:
    def __init__(self, directory: Path, out: str) -> None:
        self.directory = directory
        self.out = out
        self.context: dict[str, Any] = json.loads((directory / "run.json").read_text())


def documented() -> list[str]:
    lines = (ROOT / "docs/launching.md").read_text().splitlines()
    line = next(line for line in lines if line.startswith("python -m") and "--price-per" in line)
    return shlex.split(line)[3:]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip("yaml")
    place = tmp_path_factory.mktemp("again")
    (place / "run.yaml").write_text(CONFIG)
    directory = place / "run"
    words = [*documented(), *SMALL, "--config", str(place / "run.yaml")]
    words += ["--output", str(directory)]
    done = call(
        *RUN, *words, timeout_s=240, MY_TOKEN=SECRET, NCCL_DEBUG="INFO", OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stderr
    return Run(directory, done.stdout)


def test_one_command_compares_world_sizes_and_their_cost(run: Run) -> None:
    worlds = json.loads((run.directory / "result.json").read_text())
    metrics = [world["aggregated_metrics"] for world in worlds["runs"]]
    assert [world["num_processes"] for world in worlds["runs"]] == [1, 2]
    assert metrics[0]["efficiency"] == 1.0
    assert metrics[1]["efficiency"] == pytest.approx(metrics[1]["speedup"] / 2)
    rows = worlds["cost"]["rows"]
    for row, metric in zip(rows, metrics, strict=True):
        per_1000_s = 1000 / metric["samples_per_sec"]
        assert row["cost_per_1000_samples"]["value"] == pytest.approx(3.06 / 3600 * per_1000_s)
    shown = " ".join(run.out.split())
    for words in (
        "effi-",
        "Cost at 3.06 per hour and node",
        "Cheapest per sample:",
        worlds["verdict"]["headline"],
    ):
        assert " ".join(words.split()) in shown


def test_options_of_the_command_line_override_the_configuration_file(run: Run) -> None:
    results = json.loads((run.directory / "world_2/rank_0.json").read_text())
    assert (results["steps"], results["per_rank_batch"]) == (6, 4)


def test_ranks_ran_where_they_were_pinned(run: Run) -> None:
    cpus = {str(cpu) for cpu in os.sched_getaffinity(0)}
    seen = [
        set(
            read_trace(run.directory / f"world_2/rank_{rank}.trace").metadata["machine"][
                "usable_cpus"
            ]
        )
        for rank in range(2)
    ]
    pinned = run.context["pinning"]["worlds"]["2"]
    assert pinned["mode"] == "cores"
    assert seen[0] | seen[1] <= cpus
    assert pinned["disjoint"] == seen[0].isdisjoint(seen[1])
    assert pinned["disjoint"] == (len(cpus) >= 2)
    assert "Ranks were pinned to CPUs (cores). At world size 2, the" in run.out
    assert "1 thread per rank (OMP_NUM_THREADS) pinned (cores)" in run.out.replace("\n", " ")


def test_the_run_directory_holds_command_versions_and_changes_but_no_secret(run: Run) -> None:
    assert run.context["command"].startswith("python -m commprof.run --all --nproc 8 --workload")
    found = run.context["reproduction"]
    assert found["environment"]["NCCL_DEBUG"] == "INFO"
    assert found["versions"]["torch"] == run.context["torch"]
    git = found["git"]
    assert git.keys() & {"commit", "unknown"}
    kept = run.directory / "changes.patch"
    assert kept.exists() == bool("commit" in git and git["patch"]["file"])
    assert not kept.exists() or kept.stat().st_size == git["patch"]["bytes"]
    for file in run.directory.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


def test_the_report_shows_the_command_that_repeats_the_run(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run.directory), "--all"]) == 0
    again = f"Run it again: commprof run --config {run.directory}/config.yaml"
    assert again in capsys.readouterr().out
    assert again in run.out


def test_the_written_configuration_gives_the_same_plan(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    given = [*documented(), *SMALL, "--config", str(run.directory.parent / "run.yaml")]
    plans = []
    for words in (given, ["--config", str(run.directory / "config.yaml")]):
        assert main(["run", "--dry-run", "--output", "new", *words]) == 0
        text = capsys.readouterr().out
        plans.append(text.replace("(--threads-per-rank)", "(OMP_NUM_THREADS)"))
    assert plans[0] == plans[1]
    assert "World size 2, strategy ddp: ranks 0 to 1 on this machine" in plans[0]
    assert "6 steps of 1 x 4 samples per rank" in plans[0]
