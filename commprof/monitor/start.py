"""Starts a job's monitor as a process that is not a child of the job.

The job does not wait for the monitor. The monitor ends when the process that started it and all
ranks of the host have ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from commprof import satellites
from commprof.errors import UsageError
from commprof.monitor.metrics.endpoint import listen, parse_address
from commprof.monitor.one_per_host import is_chosen, start_beside
from commprof.monitor.settings import Settings, settings_of_variable
from commprof.trace.run.processes import identity

LOG_FILE: Final = "monitor.log"


def check_settings(settings: Settings) -> None:
    """Checks the settings now, so that the monitor does not fail later.

    Raises:
        CommprofError: the address or the profile cannot be used.
    """
    if settings.address:
        listen(parse_address(settings.address)).close()
    if settings.profile:
        satellites.forecast().expected_times(settings.profile)


def start_in_rank(job: Path, asked: str) -> str:
    """Starts one monitor per host, if COMMPROF_METRICS asks for metrics.

    Args:
        job: a directory that belongs to this job alone.
        asked: value of COMMPROF_METRICS.

    Returns:
        The reason why a requested monitor could not be started; empty otherwise.
    """
    if not asked or not is_chosen(job, "monitor"):
        return ""
    try:
        settings = settings_of_variable(asked)
        return start_monitor(job, settings, "--this-job") if settings.wanted else ""
    except UsageError as error:
        return f"no live metrics: {error}"


def start_monitor(run: Path, settings: Settings, *more: str) -> str:
    """Starts a monitor. Returns the reason for a failure, else an empty text.

    The monitor ends when this process and all ranks of this host have ended. ``more`` holds further
    arguments for ``python -m commprof.monitor``.
    """
    pid = os.getpid()
    began = identity(pid)
    if not began:
        return (
            "no live metrics: /proc does not show this process, so a monitor could not tell "
            "when this process ends; mount procfs on /proc"
        )
    command = [
        *(sys.executable, "-m", "commprof.monitor"),
        *(str(run.absolute()), "--of-process", f"{pid}:{began}", *more),
        *settings.arguments(),
    ]
    try:
        with (run / LOG_FILE).open("ab") as log:
            shell = start_beside(command, detached=True, output=log, errors=log)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no live metrics: {error}"
    return (
        "no live metrics: /bin/sh, which starts the monitor, ended with exit code "
        f"{shell.returncode}; see monitor.log in the run directory"
        if shell.returncode
        else ""
    )
