from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commprof.trace.reader import read_trace

SCRIPT = """
import sys, torch, commprof
torch.set_num_threads(1)
with commprof.profile(sys.argv[1]):
    torch.set_num_threads(int(sys.argv[2]))
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_set_during_capture_are_noted(tmp_path: Path, threads: int) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(threads)]
    subprocess.run(command, check=True, timeout=120)
    (path,) = tmp_path.rglob("rank_0.trace")
    assert read_trace(path).metadata["threads"] == threads
