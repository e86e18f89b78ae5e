from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commprof.tune.compressors import SCHEMES
from tests.support.machines.commands import RUN, call
from tests.support.ranks.plain_script import LAYER_BYTES, plain_script

LATE_MS = 20


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.parametrize(("ranks", "hook"), [(2, "int8"), (3, "fp16"), (3, "topk:ratio=0.01")])
def test_the_late_rank_is_named_where_gradients_are_compressed(
    tmp_path: Path, ranks: int, hook: str
) -> None:
    # Rank 1 itself does not wait, so the mean wait of all ranks is below LATE_MS.
    run = tmp_path / "run"
    late = f"timed:late_rank=1,late_ms={LATE_MS}"
    ended = call(
        *(*RUN, "--world-sizes", str(ranks), "--workload", late, "--hook", hook),
        *("--steps", "16", "--overhead-steps", "0", "--output", str(run)),
        timeout_s=120,
    )
    assert ended.returncode == 0, ended.stderr
    (found,) = json.loads((run / "result.json").read_text())["runs"]
    metrics = found["aggregated_metrics"]
    parts = metrics["parts"]
    assert metrics["late_rank"]["rank"] == 1
    assert metrics["late_rank"]["phase"] == "backward"
    assert parts["wait_ms"] == pytest.approx(LATE_MS * (ranks - 1) / ranks, abs=2)
    assert parts["wait_ms"] + parts["transfer_ms"] == pytest.approx(parts["exposed_ms"])
    assert "Rank 1 is late" in ended.stdout
    page = call("-m", "commprof", "report", "--format", "html", str(run), timeout_s=60)
    assert page.returncode == 0, page.stderr
    assert "Rank 1 is late" in (run / "report.html").read_text()


OWN_HOOK = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
ddp.register_comm_hook(None, allreduce_hook)
"""


def run(tmp_path: Path, *arguments: str) -> tuple[Any, str]:
    ended = call(
        *RUN, "--world-sizes", "2", "--output", str(tmp_path / "run"), *arguments, timeout_s=120
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    logs = (tmp_path / "run").rglob("*.err")
    return result, ended.stdout + ended.stderr + "".join(log.read_text() for log in logs)


def test_run_hook_compresses_the_gradients_of_a_built_in_workload(tmp_path: Path) -> None:
    small = "transformer:vocab=512,d_model=64,heads=2,feedforward=128,sequence=16,samples=64"
    result, text = run(
        tmp_path,
        *("--workload", small, "--steps", "14", "--overhead-steps", "0"),
        *("--hook", "int8:measure_every=1"),
    )
    metrics = result["runs"][0]["aggregated_metrics"]
    rows = metrics["compression"]
    assert {row["scheme"] for row in rows} == {"int8"}
    assert all(3.5 < row["ratio"] < 4 for row in rows)
    assert all(row["relative_error"] < 0.03 for row in rows)
    assert result["context"]["hook"] == "int8:measure_every=1"
    assert "Compressed buckets of 2 ranks:" in text
    assert "times fewer bytes" in " ".join(text.split())
    parts = metrics["parts"]
    names = ("data", "forward", "backward", "exposed", "optimizer", "other")
    total = sum(parts[f"{name}_ms"] for name in names)
    assert abs(total - parts["step_ms"]) < 1e-6 * total
    checks = {check["name"]: check for check in metrics["cross_checks"]}
    assert checks["ddp_bytes"]["agrees"]


@pytest.mark.slow
def test_run_hook_compresses_the_gradients_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(plain_script())
    result, text = run(tmp_path, "--hook", "topk:ratio=0.1", str(script))
    (row,) = result["runs"][0]["aggregated_metrics"]["compression"]
    assert row["scheme"] == "topk"
    assert row["gradient_bytes"] == LAYER_BYTES
    assert "registers its own communication hook" not in text


@pytest.mark.slow
def test_a_hook_of_the_script_replaces_the_compressor_with_a_warning(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(plain_script(wrapped=OWN_HOOK))
    result, text = run(tmp_path, "--hook", "int8", str(script))
    assert result["runs"][0]["aggregated_metrics"]["compression"] == []
    assert "registers its own communication hook, which replaces the compressor int8" in text
    assert any("--hook int8 compressed nothing" in remark for remark in result["remarks"])


def test_an_unknown_compressor_is_refused_at_once(tmp_path: Path) -> None:
    ended = call(*RUN, "--hook", "zip", "--output", str(tmp_path / "run"), cold=True)
    assert ended.returncode == 2
    assert "unknown compressor 'zip' (allowed: none, fp16" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_run_help_lists_compressor_schemes() -> None:
    ended = call(*RUN, "--help-all", cold=True)
    for line in ("  topk:ratio=0.01 ", "  powersgd:rank=4 ", "--hook NAME"):
        assert line in ended.stdout
    assert [name for name in SCHEMES if f"\n  {name}" not in ended.stdout] == []
