"""The watchdog and live metrics beside ranks that nobody launched: on, at work, and gone again."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commprof import variables
from commprof.monitor.monitor import address_file
from tests.support.machines.processes import await_gone, gone, processes_of

#: Longer than a rank is stopped here, shorter than a partitioned one waits.
_THRESHOLD_S = 5
_INTERVAL_S = 0.2
_START_S = 20
_POLL_S = 0.05


def environment(place: Path) -> dict[str, str]:
    """What makes ranks start both; lines of JSON go to ``place``, which is made."""
    place.mkdir(parents=True)
    place.chmod(0o777)  # the ranks may be another user's
    lines = shlex.quote(str(place / "metrics.jsonl"))
    return {
        variables.WATCHDOG: str(_THRESHOLD_S),
        variables.METRICS: f"--metrics-address 127.0.0.1:0 --metrics-jsonl {lines} "
        f"--metrics-interval {_INTERVAL_S}",
    }


def await_both(traces: Path, ranks: Sequence[int]) -> bool:
    """Whether the endpoint listened and the watchdog ran while one of these processes did."""
    limit = time.monotonic() + _START_S
    listened = watched = False
    while not (listened and watched):
        if time.monotonic() > limit or all(gone(pid) for pid in ranks):
            return False
        listened = listened or address_file(traces).exists()
        watched = watched or any(_is_watchdog(pid) for pid in processes_of(traces))
        time.sleep(_POLL_S)
    return True


def end(traces: Path) -> list[int]:
    """Waits for the end of both; those that had to be killed, because they would not end."""
    left = await_gone(processes_of(traces))
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _is_watchdog(pid: int) -> bool:
    """And not the shell that starts it."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[1:3] == [b"-m", b"commprof.monitor.watchdog"]
    return False
