from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from commprof.trace.reader import Trace, read_trace
from tests.support.machines.fork_server import Forked

ROOT = Path(__file__).parents[3]


def run_on_device(
    module: str, directory: Path, *arguments: str, **environment: str
) -> tuple[Trace, dict[str, Any]]:
    words = ["-m", module, str(directory), *arguments]
    process = Forked(words, {**os.environ, **environment}, ROOT)
    said, _ = process.communicate(400)
    assert process.returncode == 0, said
    truth = json.loads((directory / "truth.json").read_text())
    return read_trace(directory / "rank_0.trace"), truth
