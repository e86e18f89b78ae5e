"""Where /dev/shm is small, as in containers, most of it is left to others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commprof import _native
from tests.support.ranks.capture.small_memory import PHASES, SIZE_MIB, THREADS

UNSHARE = ["unshare", "--mount", "--propagation", "private"]


def _cannot_mount() -> bool:
    return os.geteuid() != 0 or subprocess.run([*UNSHARE, "true"], check=False).returncode != 0


@pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")
@pytest.mark.skipif(_cannot_mount(), reason="needs a mount namespace")
def test_rings_take_a_small_share_and_lose_nothing(tmp_path: Path) -> None:
    """Smaller rings, then none at all in /dev/shm, and no signal where it is full."""
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tests.support.ranks.capture.small_memory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    said = json.loads(done.stdout)
    assert 0 < said["empty"]["taken"] <= (SIZE_MIB << 20) / 32
    assert 0 < said["empty"]["private"] < THREADS
    assert said["full"]["private"] == said["full"]["rings"] == THREADS
    for name in ("empty", "full"):
        assert said[name]["written"] == THREADS * PHASES
        assert said[name]["dropped"] == 0
    assert said["left"] == []
