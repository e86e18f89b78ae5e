"""A trace is salvaged only where its process is known to be gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from commprof.errors import CommprofError
from commprof.trace.reader import read_trace
from commprof.trace.rings.salvage import salvage_dead
from commprof.trace.run.run_directory import read_context
from tests.support.builders import trace_bytes as made

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
PIDS = os.readlink("/proc/self/ns/pid")


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def write(directory: Path, pid: int, boot_id: str = BOOT_ID, pids: str = PIDS) -> tuple[Path, Path]:
    """A trace that was not closed, and the ring of its process with a record in it."""
    prefix = str(directory / "ring-")
    metadata: dict[str, Any] = made.metadata(pid=pid, ring_prefix=prefix)
    metadata["machine"].update(boot_id=boot_id, pid_namespace=pids)
    trace, ring = directory / "rank_1.trace", directory / "ring-0.ring"
    trace.write_bytes(made.file_header() + made.document(made.METADATA_BLOCK, metadata))
    ring.write_bytes(made.ring({0: made.record(5)}, head=1))
    return trace, ring


def test_of_a_process_that_is_gone(tmp_path: Path, gone: int) -> None:
    trace, ring = write(tmp_path, gone)
    salvage_dead(tmp_path)
    assert not ring.exists()
    assert read_trace(trace).records["timestamp_ns"].tolist() == [5]


def test_of_a_process_that_nobody_has_waited_for(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    _, ring = write(tmp_path, process.pid)
    salvage_dead(tmp_path)
    process.communicate()
    assert not ring.exists()


@pytest.mark.parametrize("other", [{"boot_id": "b"}, {"pids": "pid:[1]"}, {"boot_id": ""}])
def test_not_of_another_machine_or_container(
    tmp_path: Path, gone: int, other: dict[str, str]
) -> None:
    trace, ring = write(tmp_path, gone, **other)
    content = trace.read_bytes()
    salvage_dead(tmp_path)
    assert ring.exists()
    assert trace.read_bytes() == content


def test_not_of_a_process_that_runs(tmp_path: Path) -> None:
    _, ring = write(tmp_path, os.getpid())
    salvage_dead(tmp_path)
    assert ring.exists()


def test_traces_of_two_jobs_are_no_run(tmp_path: Path) -> None:
    for rank, size in ((0, 1), (1, 2)):
        metadata = made.metadata(rank=rank, world_size=size)
        (tmp_path / f"rank_{rank}.trace").write_bytes(
            made.file_header() + made.document(made.METADATA_BLOCK, metadata)
        )
    with pytest.raises(CommprofError, match=r"several jobs: rank_0\.trace of 1 ranks, rank_1"):
        read_context(tmp_path)
