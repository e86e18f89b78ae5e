"""Starts a job's watchdog, allows it to read the ranks' stacks, and ends it.

The ranks never wait for the watchdog.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from commprof import variables
from commprof.monitor.one_per_host import is_chosen, start_beside
from commprof.monitor.watchdog.thresholds import OFF

#: Seconds that the watchdog gets to finish its work when the job has ended.
_END_S = 10.0


@contextmanager
def watched(directory: Path, threshold: str | None, samples: bool = False) -> Iterator[None]:
    """Runs a watchdog for the ranks that record into ``directory`` while the context is open.

    If the watchdog cannot be started, a line on stderr gives the reason.

    Args:
        directory: directory into which the ranks record.
        threshold: ``auto`` or seconds, as for ``--watchdog``; None to report no hangs.
        samples: True to sample the ranks with py-spy.
    """
    if threshold is None and not samples:
        yield
        return
    before = {name: os.environ.get(name) for name in (variables.WATCHDOG, variables.PTRACER)}
    os.environ.pop(variables.WATCHDOG, None)  # no rank shall start another watchdog
    os.environ[variables.PTRACER] = str(os.getpid())
    options = ["--parent", str(os.getpid()), *(["--samples"] if samples else [])]
    process = _start([*_command(directory, threshold or OFF), *options], detached=False)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if process is not None:
            _end(process)


def start_detached(directory: Path, threshold: str) -> None:
    """Starts a watchdog that is not a child of this process and that ends after the last rank."""
    _start(_command(directory, threshold), detached=True)


def watch_as_asked(directory: Path, threshold: str) -> None:
    """Starts one watchdog per host, if the threshold is not empty."""
    if threshold and is_chosen(directory, "watchdog"):
        start_detached(directory, threshold)


def _command(directory: Path, threshold: str) -> list[str]:
    command = [sys.executable, "-m", "commprof.monitor.watchdog", str(directory.absolute())]
    return [*command, "--threshold", threshold]


def _start(command: list[str], detached: bool) -> subprocess.Popen[bytes] | None:
    try:
        return start_beside(command, detached=detached, output=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"commprof: no watchdog: {error}", file=sys.stderr)
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
        process.send_signal(signal.SIGCONT)  # a stopped process would not act on SIGTERM
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_PR_SET_PTRACER = 0x59616D61


def allow_tracer(pid: int | None) -> None:
    """Allows the launcher's descendants to read this rank's stacks.

    With ``kernel.yama.ptrace_scope`` 1, only ancestors may read a process. The watchdog is not an
    ancestor of the ranks. With other settings, the call has no effect. ``pid`` is the launcher's
    process id; if it is None, nothing is done.
    """
    if pid is not None:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
