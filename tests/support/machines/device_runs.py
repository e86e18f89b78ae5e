"""Runs a script that uses a device, and reads what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from commprof.trace.reader import Trace, read_trace

ROOT = Path(__file__).parents[3]


def run_on_device(
    module: str, directory: Path, *arguments: str, **environment: str
) -> tuple[Trace, dict[str, Any]]:
    """``python -m module directory ...``: rank 0's trace, and the truth that the script wrote."""
    done = subprocess.run(
        [sys.executable, "-m", module, str(directory), *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout
    truth = json.loads((directory / "truth.json").read_text())
    return read_trace(directory / "rank_0.trace"), truth
