"""Which rank of a host starts what a host needs once: the monitor, the watchdog."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

#: Names of a rank's number on its host that hold for its process alone.
_OWN: Final = "LOCAL_RANK"
#: As Slurm and Open MPI call it: processes that a task starts, such as by mp.spawn, inherit it.
_OF_TASK: Final = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


def is_chosen(job: Path, what: str) -> bool:
    """Whether this rank is the one of its host; true in one rank at most.

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
