"""Processes beside a job: which rank of a host starts them, how, and in which environment."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, TypeAlias

Output: TypeAlias = "int | IO[bytes] | None"

#: Names of a rank's number on its host that hold for its process alone.
_OWN: Final = "LOCAL_RANK"
#: For a shell that starts something and ends.
_PATIENCE_S: Final = 5.0
#: As Slurm and Open MPI call it: processes that a task starts, such as by mp.spawn, inherit it.
_OF_TASK: Final = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


def is_chosen(job: Path, what: str) -> bool:
    """True if this rank is the one of its host; true in one rank at most.

    ``LOCAL_RANK`` says it. Without one, the ranks that Slurm or Open MPI do not number above 0
    race for a file in the job's directory: who makes it is the one.

    Args:
        job: the directory of this job and no other.
        what: is started once, such as ``monitor``; a part of the file's name.
    """
    own = os.environ.get(_OWN)
    if own is not None:
        return own == "0"
    if next((os.environ[name] for name in _OF_TASK if name in os.environ), "0") != "0":
        return False
    try:
        os.close(os.open(_lock(job, what), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
    except OSError:  # another rank was faster; or nothing can be written there, traces neither
        return False
    return True


def _lock(job: Path, what: str) -> Path:
    """One per host and attempt."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    attempt = re.sub(r"\D", "_", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return job / f"{what}_{host}.attempt_{attempt}.lock"


def start_beside(
    command: Sequence[str], *, detached: bool, output: Output, errors: Output = None
) -> subprocess.Popen[bytes]:
    """Starts a process beside the job, which is no rank and is not recorded.

    It is in a session of its own, so that Ctrl-C and signals to the job's group do not reach it.

    Args:
        command: the program and its arguments.
        detached: through a shell that has ended when this returns, so that it is no child of the
            job: a script that waits for all of its children must not find one more.
        output: where it writes to.
        errors: the same for stderr; None leaves this process's.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: the shell did not end.
    """
    shell = ("/bin/sh", "-c", '"$@" &', "sh") if detached else ()
    process = subprocess.Popen(
        [*shell, *command],
        env=outside_environment(),
        cwd="/",  # modules of the script's directory are none of its own
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
    """Environment for a process beside the job, which is no rank and is not recorded.

    It finds the same commprof, and computes with one thread: the ranks need the cores.
    """
    package = Path(__file__).resolve().parents[2]
    boot = package / "commprof" / "capture" / "boot"
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [str(package), *(entry for entry in given if Path(entry).resolve() != boot)]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COMMPROF_", "RANK", "LOCAL_RANK", "OMP_"))
    }
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **threads}
