"""Starts the monitor beside a job: a process that the job neither waits for nor owns.

It is no child of the job, and ends by itself when the process that it is for does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from commprof.errors import UsageError
from commprof.monitor.metrics.endpoint import listen, parse_address
from commprof.monitor.one_per_host import is_chosen, start_beside
from commprof.monitor.settings import Settings, settings_of_variable
from commprof.predict.fit.machine_profile import load_profile
from commprof.trace.run.processes import identity

#: What the monitor says, in the run directory.
LOG_FILE: Final = "monitor.log"


def check_settings(settings: Settings) -> None:
    """Refuses now what the monitor would fail with later.

    Raises:
        CommprofError: nothing can listen on the address, or the profile cannot be used.
    """
    if settings.address:
        listen(parse_address(settings.address)).close()
    if settings.profile:
        load_profile(settings.profile)


def start_in_rank(job: Path, asked: str) -> str:
    """Starts a monitor beside one rank of each host, if COMMPROF_METRICS asks for it.

    Args:
        job: the directory of this job and no other.
        asked: what that variable holds.

    Returns:
        Why there is none though it was asked for; or nothing.
    """
    if not asked or not is_chosen(job, "monitor"):
        return ""
    try:
        settings = settings_of_variable(asked)
        return start_monitor(job, settings, "--this-job") if settings.wanted else ""
    except UsageError as error:
        return f"no live metrics: {error}"


def start_monitor(run: Path, settings: Settings, *more: str) -> str:
    """Starts a monitor for ``run`` until this process ends; returns why it cannot, or nothing."""
    pid = os.getpid()
    began = identity(pid)
    if not began:
        return "no live metrics: /proc does not show this process, so its end would not be seen"
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
    return f"no live metrics: the shell ended with {shell.returncode}" if shell.returncode else ""
