from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def small_disk(where: Path, size_bytes: int) -> Iterator[Path]:
    where.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=777", "tmpfs", str(where)],
        check=True,
    )
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def can_mount() -> bool:
    if os.geteuid() != 0:
        return False
    probe = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True
    )
    return probe.returncode == 0


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[str]:
    """Yields the directory of a new cgroup, or an empty string if none can be made."""
    for root, names in (
        ("/sys/fs/cgroup", {"memory.max": limit_bytes, "memory.swap.max": 0}),
        ("/sys/fs/cgroup/memory", {"memory.limit_in_bytes": limit_bytes}),
    ):
        if not Path(root, "cgroup.procs").exists():
            continue  # this path belongs to another version of cgroups
        group = Path(root) / f"commprof-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                for name, value in names.items():
                    (group / name).write_text(str(value))
            except OSError:
                continue
            yield str(group)
            return
        finally:
            with suppress(OSError):
                group.rmdir()
    yield ""
