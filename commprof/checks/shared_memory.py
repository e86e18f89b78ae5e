"""Checks that /dev/shm has room for DataLoader workers and for commprof's ring buffers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from commprof.analysis.checks.outcome import FAIL, PASS, SKIP, WARN, Outcome, per_host
from commprof.checks.ranks import Ranks

NAME = "/dev/shm"
#: Number of bytes that the ring buffers of a rank's threads need.
_NEEDED_BYTES = 16_000_000
#: The check warns if fewer bytes are free. Batches of DataLoader workers may need gigabytes, but
#: containers get 64 MB by default.
_COMFORTABLE_BYTES = 1_000_000_000


def measure(ranks: Ranks) -> tuple[str, tuple[int, int]]:
    """Returns this rank's host, and the free and total bytes of the host's /dev/shm.

    Both numbers are -1 if /dev/shm does not exist.
    """
    try:
        found = os.statvfs(NAME)
    except OSError:
        return ranks.host, (-1, -1)
    return ranks.host, (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def judge(values: Sequence[tuple[str, tuple[int, int]]]) -> Outcome:
    """Fails if the ring buffers of a host's ranks do not fit; warns if batches may not fit."""
    ranks_of = {host: sum(name == host for name, _ in values) for host, _ in values}
    status, figures = PASS, []
    for host, (free, size) in sorted(per_host(values).items()):
        if free < 0:
            figures.append(f"none on {host}")
            status = SKIP if status == PASS else status
            continue
        figures.append(f"{free / 1e9:.3g} of {size / 1e9:.3g} GB free on {host}")
        if free < _NEEDED_BYTES * ranks_of[host]:
            status = FAIL
        elif free < _COMFORTABLE_BYTES and status != FAIL:
            status = WARN
    advice = (
        "DataLoader workers pass batches through /dev/shm: remove leftover files from it, or "
        "enlarge it in the container (docker run --shm-size=8g, or an emptyDir with medium: Memory)"
    )
    return Outcome(NAME, status, "; ".join(figures), advice if status in (WARN, FAIL) else "")
