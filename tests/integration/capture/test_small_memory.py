from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commprof import _native
from tests.support.ranks.capture.many_events import many_events
from tests.support.ranks.capture.small_memory import PHASES, SIZE_MIB, THREADS

UNSHARE = ["unshare", "--mount", "--propagation", "private"]


def _cannot_mount() -> bool:
    return os.geteuid() != 0 or subprocess.run([*UNSHARE, "true"], check=False).returncode != 0


@pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")
@pytest.mark.skipif(_cannot_mount(), reason="needs a mount namespace")
def test_rings_take_little_of_a_small_dev_shm_and_lose_no_records(tmp_path: Path) -> None:
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
        assert said[name]["phases"] == THREADS * PHASES
        assert said[name]["dropped"] == 0
    assert said["left"] == []


pytestmark = pytest.mark.skipif(_native.native is None, reason="needs the C++ module")

_RECORD_BYTES = 64
#: Python with numpy needs a part of this memory, and Python's allocator keeps the rest.
_PYTHON_BYTES = 300 << 20


@pytest.mark.slow
def test_ten_million_events_are_kept_and_read_in_bounded_memory() -> None:
    found = many_events(10_000_000)
    assert found.all_accounted_for, found
    # A busy machine drops the other records, and counts them.
    assert found.found > 5_000_000, found
    assert found.trace_bytes < 1.01 * _RECORD_BYTES * found.found, found
    # Memory holds the file, its records, a copy of the records in order of time, and this order.
    assert found.peak_bytes < 3.2 * found.trace_bytes + _PYTHON_BYTES, found


def test_a_stopped_process_records_a_pause_that_is_not_a_step() -> None:
    found = many_events(10_000, stops=True)
    assert found.pauses == 1, found
    assert found.all_accounted_for, found
