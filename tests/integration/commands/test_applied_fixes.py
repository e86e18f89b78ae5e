from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.causes.catalogue import JOBS, JOBS_FOLDER, OPTIONS
from tests.support.applied_fix import applied

ROOT = Path(__file__).parents[3]
SELDOM = "if step % 100 == 0:  # if no step in between uses the result\n    "
#: The report derives the fixes of these jobs from the script, and a fix must contain the text.
CHANGES = {
    "trained_apart": "model = ddp if common.FIXED else ddp",
    "weights_differ": "for tensor in ddp.state_dict().values():",
    "ddp_every_pass": "if last_pass else ddp.no_sync()",
    "ddp_buffers": "broadcast_buffers=False",
    "ddp_frozen_gradients": 'model.get_submodule("backbone").requires_grad_(False)',
    "ddp_small_buckets": '"bucket_cap_mb": 25',
    "fsdp_one_unit": "fully_shard(block, reshard_after_forward=False)",
    "fsdp_small_units": "fully_shard(units[first : first + 6], reshard_after_forward=False)",
    "fsdp_every_pass": "model.set_requires_gradient_sync(pass_number == len(passes) - 1)",
    "fsdp_gathers_each_pass": "model.set_reshard_after_backward(pass_number == len(passes) - 1)",
    "scalars_one_by_one": "tensors = [value for name, value in metrics.items()]",
    "scalars_gathered": "dist.all_gather(rows, flat)",
    "weights_averaged": "tensors = [parameter for parameter in model.parameters()]",
    "zero_one_by_one": "parameters_as_bucket_view=True",
    "pickled_objects": f"{SELDOM}dist.all_gather_object(everyone, mine)",
    "compiled_anew": "dynamic=True",
    "workers_restarted": "persistent_workers=True",
    "debug_detail": "# in place of debug_detail.py:9\npass",
    "barrier_each_step": "# in place of barrier_each_step.py:13\npass",
    "late_loading": '"num_workers": 4',
    "late_embedding": "sparse=True",
}


def causes(script: Path, job: str, directory: Path) -> dict[str, Any]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{JOBS_FOLDER}{os.pathsep}{ROOT}",
        "FIXED": "0",
        "STEPS": "24",
    }
    run = [sys.executable, "-m", "commprof.run", "--nproc", "2", *OPTIONS.get(job, [])]
    ran = subprocess.run(
        [*run, "--output", str(directory), str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    shown = [sys.executable, "-m", "commprof", "report", str(directory), "--format", "json"]
    result = subprocess.run(shown, check=True, capture_output=True, timeout=120).stdout
    found = json.loads(result)["runs"][-1]["aggregated_metrics"]["causes"]
    return {cause["id"]: cause for cause in found}


@pytest.mark.slow
@pytest.mark.flaky(reruns=2)  # Another process may change what a short job waits for.
@pytest.mark.parametrize("job", CHANGES)
def test_the_printed_fix_of_a_job_runs_and_its_cause_is_gone(tmp_path: Path, job: str) -> None:
    script = JOBS_FOLDER / f"{job}.py"
    named = causes(script, job, tmp_path / "job")
    assert JOBS[job] in named
    fix = named[JOBS[job]]["fix"]
    assert CHANGES[job] in fix, fix
    assert "YOUR_" not in fix
    changed = tmp_path / script.name
    changed.write_text(applied(fix, script.name, script.read_text()))
    assert JOBS[job] not in causes(changed, job, tmp_path / "changed"), fix
