"""Where the traces and rings of one job go, when several jobs write into one directory.

Each job has a directory of its own: the one that was asked for, or ``job_2``, ``job_3`` and so
on within it. Rank 0 takes the first that is free and tells the others through the store at
which the ranks met. Rings lie in memory, never on a disk or a network, which could stall them.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from commprof.capture.job.metadata import elastic_run_id
from commprof.errors import CommprofError
from commprof.trace.reader import read_first_metadata
from commprof.trace.ring import remove_orphans, write_owner
from commprof.trace.run.endings import restart_count, stem_of

_KEY = "commprof/job_directory"
#: A rank that waits longer records where it was asked to.
_PATIENCE = timedelta(seconds=10)
_MOST_JOBS = 1_000

#: Traces made by `_take` that no profiler has opened yet.
_taken: set[Path] = set()


def trace_name(rank: int) -> str:
    """File name of this process's trace; after an elastic restart another one."""
    return stem_of(rank, restart_count()) + ".trace"


def agree(directory: Path) -> Path:
    """Agrees on this job's directory; call it on all ranks once they have met.

    Raises:
        CommprofError: rank 0 cannot make a trace there.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return directory / _take(directory, 0)
    store = _store()
    if store is None:
        return directory
    if dist.get_rank() == 0:
        name = ""
        try:
            name = _take(directory, 0)
        finally:
            store.set(_KEY, name)  # the others wait for it, whatever happened here
        return directory / name
    try:
        store.wait([_KEY], _PATIENCE)
        return directory / bytes(store.get(_KEY)).decode()
    except (RuntimeError, UnicodeDecodeError):
        return directory


def _store() -> Any:
    """Where the ranks met; None for backends that have none, such as MPI."""
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError, KeyError):
        return None


def _take(directory: Path, rank: int) -> str:
    """Makes this rank's trace in the first directory that no job has; returns its name."""
    restarted = trace_name(rank) != f"rank_{rank}.trace"
    names = ["", *(f"job_{number}" for number in range(2, _MOST_JOBS))]
    if restarted:  # beside the traces of the attempt before
        names = _of_this_job(directory, names, rank) or names
    for name in names:
        path = directory.absolute() / name / trace_name(rank)
        if path.exists() or (not restarted and any(path.parent.glob("rank_*.trace"))):
            continue
        try:
            claim(path)
        except CommprofError:
            if path.exists():
                continue  # another job was faster
            raise
        _taken.add(path)
        return name
    raise CommprofError(f"{directory} holds {_MOST_JOBS} jobs; name a new directory")


def _of_this_job(directory: Path, names: list[str], rank: int) -> list[str]:
    """The last of these with traces of this elastic job; if none says so, the last with any."""
    found = [name for name in names if (directory / name / f"rank_{rank}.trace").exists()]
    own = []
    for name in found:
        with suppress(CommprofError, OSError):
            metadata = read_first_metadata(directory / name / f"rank_{rank}.trace")
            own += [name] * (metadata.get("elastic_run_id") == elastic_run_id())
    return (own or found)[-1:]


def claim(path: Path) -> None:
    """Makes an empty file that was not there before.

    Raises:
        CommprofError: it was, or cannot be made.
    """
    if path in _taken:
        _taken.remove(path)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommprofError(f"cannot make the directory {path.parent}: {error.strerror}") from None
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise CommprofError(
            f"{path} exists already; give this run a directory of its own, or remove it"
        ) from None
    except OSError as error:
        raise CommprofError(f"cannot write {path}: {error.strerror}") from None


_MEMORY = Path("/dev/shm")


def ring_prefix() -> str:
    """Path prefix of the ring files: in memory, never on a disk or network that could stall.

    Empty where there is no such memory: then they die with their process.
    """
    name = f"commprof-{os.getuid()}-{os.getpid()}-{secrets.token_hex(4)}-"
    in_memory = os.path.ismount(_MEMORY.resolve()) and os.access(_MEMORY, os.W_OK)
    return str(_MEMORY / name) if in_memory else ""


def own_rings(prefix: str, path: Path, session: int, metadata: dict[str, Any]) -> None:
    """Notes in memory whose rings these are, and removes rings that earlier jobs left behind."""
    if metadata["capture"] != "native" or not prefix:
        return
    with suppress(OSError):
        write_owner(prefix, path, session, metadata)
    if metadata["local_rank"] == 0:
        with suppress(OSError):
            remove_orphans()
