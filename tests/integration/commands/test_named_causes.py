from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
JOBS = ROOT / "benchmarks/causes/jobs"


def report(job: str, fixed: bool, directory: Path) -> tuple[dict[str, Any], str]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{JOBS}{os.pathsep}{ROOT}",
        "FIXED": str(int(fixed)),
        "STEPS": "24",
    }
    command = [sys.executable, "-m", "commprof.run", "--nproc", "2", "--output", str(directory)]
    ran = subprocess.run(
        [*command, str(JOBS / f"{job}.py")],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    shown = [sys.executable, "-m", "commprof", "report", str(directory), "--format", "json"]
    said = subprocess.run(shown, check=True, capture_output=True, timeout=120).stdout
    result: dict[str, Any] = json.loads(said)
    return result, ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "cause", "line", "words"),
    [
        ("ddp_every_pass", "ddp-every-pass", "", "in all 4 backward passes before an"),
        ("ddp_wrong_pass", "ddp-wrong-pass", "", "The ranks' weights drift apart"),
        ("ddp_other_model", "ddp-other-model", "", "of gradients per step for nothing"),
        ("cached_loss", "ddp-every-pass", "", "in all 4 backward passes before an"),
        ("scalars_one_by_one", "scalars-one-by-one", "dist.all_reduce(value)", "24 all_reduce"),
    ],
)
def test_a_real_job_is_told_its_cause_and_its_healthy_twin_none(
    tmp_path: Path, job: str, cause: str, line: str, words: str
) -> None:
    result, screen = report(job, False, tmp_path / "job")
    causes = result["runs"][-1]["aggregated_metrics"]["causes"]
    assert next(one["id"] for one in causes) == result["card"]["cause"] == cause
    assert words in " ".join(screen.split())
    assert all(code.strip() in screen for code in causes[0]["fix"].splitlines())
    if line:
        file, number = causes[0]["line"].split()[0].rsplit(":", 1)
        assert Path(file).name == f"{job}.py"
        assert Path(file).read_text().splitlines()[int(number) - 1].strip() == line
    result, screen = report(job, True, tmp_path / "twin")
    assert result["runs"][-1]["aggregated_metrics"]["causes"] == []
    assert "Cause:" not in screen
