"""Starts helper processes of a job, from one rank of each host."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, TypeAlias

from commprof.launched import local_rank_of_task

Output: TypeAlias = "int | IO[bytes] | None"

_OWN: Final = "LOCAL_RANK"
_PATIENCE_S: Final = 5.0


def is_chosen(job: Path, what: str) -> bool:
    """True if this rank starts its host's helper process; true for at most one rank per host.

    The rank with ``LOCAL_RANK`` 0 is chosen. If ``LOCAL_RANK`` is not set or not valid, the first
    rank that creates a lock file in the job's directory is chosen. Only ranks of the launcher's
    first task on the host try to create the file.

    Args:
        job: a directory that belongs to this job alone.
        what: name of the process to start, such as ``monitor``; part of the lock file's name.
    """
    own = os.environ.get(_OWN, "").strip()
    if own.isdecimal():
        return int(own) == 0
    if local_rank_of_task(os.environ) != 0:
        return False
    try:
        os.close(os.open(_lock(job, what), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
    except OSError:  # another rank was faster, or the directory cannot be written to
        return False
    return True


def _lock(job: Path, what: str) -> Path:
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    attempt = re.sub(r"\D", "_", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return job / f"{what}_{host}.attempt_{attempt}.lock"


def start_beside(
    command: Sequence[str], *, detached: bool, output: Output, errors: Output = None
) -> subprocess.Popen[bytes]:
    """Starts a helper process of the job. The process is not a rank, and is not recorded.

    The process has its own session, so Ctrl-C and signals to the job do not reach the process.

    Args:
        command: the program and its arguments.
        detached: True to start the helper through a shell, so the helper is not a child of this
            process. The shell's Popen is then returned.
        output: the process's stdout.
        errors: the process's stderr; None to inherit this process's.

    Raises:
        OSError: the process cannot be started.
        subprocess.TimeoutExpired: the shell did not end.
    """
    shell = ("/bin/sh", "-c", '"$@" &', "sh") if detached else ()
    process = subprocess.Popen(
        [*shell, *command],
        env=outside_environment(),
        cwd="/",  # do not import modules from the script's directory
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )
    if detached:
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    return process


def outside_environment() -> dict[str, str]:
    """Returns the environment of a helper process, without the variables of ranks.

    The helper computes with one thread, because the ranks need the cores.
    """
    package = Path(__file__).resolve().parents[2]
    boot = package / "commprof" / "capture" / "boot"
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [str(package), *(entry for entry in given if Path(entry).resolve() != boot)]
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COMMPROF_", "RANK", "LOCAL_RANK", "OMP_"))
    }
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**variables, "PYTHONPATH": os.pathsep.join(path), **threads}
