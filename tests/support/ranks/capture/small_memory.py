"""Mounts a small /dev/shm, so root must run this in a mount namespace (``unshare -m``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from commprof import _native
from commprof.capture.job.job_directory import ring_prefix
from commprof.trace.codes import Kind
from commprof.trace.reader import read_trace
from tests.support.builders import trace_bytes

MEMORY = Path("/dev/shm")
THREADS, PHASES = 20, 500
SIZE_MIB = 64


def _record_from_threads() -> None:
    """All threads live until the last thread has recorded, so each thread has its own ring."""
    native = _native.native
    together = threading.Barrier(THREADS)

    def work() -> None:
        marker = native.PhaseMarker(1)
        for _ in range(PHASES):
            marker.begin()
            marker.end()
        together.wait()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _free_bytes() -> int:
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize


def main(directory: Path) -> None:
    native = _native.native
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(MEMORY)], check=True
    )
    before, said = _free_bytes(), {}
    metadata = json.dumps(trace_bytes.metadata())
    for name in ("empty", "full"):
        if name == "full":
            (MEMORY / "batches").write_bytes(bytes(_free_bytes() - 8192))
        native.start(str(directory / f"{name}.trace"), ring_prefix(), metadata, 7)
        _record_from_threads()
        native.flush()
        stats = native.stats()
        said[name] = {
            "taken": before - _free_bytes() if name == "empty" else 0,
            "rings": stats.rings,
            "private": stats.rings_in_private_memory,
            "dropped": stats.records_dropped,
        }
        native.stop()
        kinds = read_trace(directory / f"{name}.trace").records["kind"]
        # A busy machine adds records of pauses, so only phases are counted.
        said[name]["phases"] = int((kinds == Kind.PHASE).sum())
    said["left"] = [path.name for path in MEMORY.glob("*.ring")]
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
