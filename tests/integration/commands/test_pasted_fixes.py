from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from commprof.analysis.causes.registry import CAUSES

ROOT = Path(__file__).parents[3]


def test_every_fix_of_the_catalogue_runs_when_it_is_pasted() -> None:
    script = ROOT / "tests/support/ranks/pasted_fixes.py"
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    expected = [cause.id + end for cause in CAUSES for end in _ends(cause.fix_of_fsdp1)]
    assert ran.stdout.split() == expected


def test_a_job_trains_while_the_pasted_fix_writes_a_checkpoint(tmp_path: Path) -> None:
    script = ROOT / "tests/support/ranks/saves_in_background.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ran = subprocess.run(
        [*torchrun, str(script), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert (tmp_path / "0/.metadata").exists()
    assert (tmp_path / "1/.metadata").exists()


def _ends(of_fsdp1: str) -> list[str]:
    return ["", "-fsdp1"] if of_fsdp1 else [""]


def test_what_the_user_replaces_is_marked_alike_everywhere() -> None:
    for cause in CAUSES:
        for fix in filter(None, (cause.fix, cause.fix_of_fsdp1)):
            code = re.sub(r"#.*", "", fix)
            assert "..." not in code, cause.id
            undefined = set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", code)) - {"SHARD_GRAD_OP", "OFF"}
            known = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}
            assert all(name.startswith("YOUR_") for name in undefined - known), cause.id
