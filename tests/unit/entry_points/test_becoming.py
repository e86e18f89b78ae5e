from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Imports a sitecustomize first, because Debian's and Ubuntu's Pythons do so at their start.
BECOME = """
import os, sys
import sitecustomize
from tests.support.machines import becoming
os.environ["PYTHONPATH"] = sys.argv[1]
becoming.run(["-c", "pass"])
"""


def test_a_forked_python_runs_the_sitecustomize_of_its_new_path(tmp_path: Path) -> None:
    for name in ("system", "given"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(f"print({name!r}, flush=True)\n")
    done = subprocess.run(
        [sys.executable, "-c", BECOME, str(tmp_path / "given")],
        env={"PYTHONPATH": f"{tmp_path / 'system'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["system", "given"]
