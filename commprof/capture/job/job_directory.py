"""Chooses the directory of a job's traces, and the place of its ring buffers ("rings").

Several jobs may be started with the same directory. The first job uses the directory itself, and
later jobs use its subdirectories ``job_2``, ``job_3`` and so on. Rank 0 chooses, and shares its
choice through the default group's store.

Rings lie in memory, because writing to a disk could stall training.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from commprof.capture.job.metadata import elastic_run_id, rank_and_world_size, replica_label
from commprof.errors import CommprofError
from commprof.trace.first_blocks import read_first_metadata
from commprof.trace.reader import read_trace
from commprof.trace.ring import remove_orphans, write_owner
from commprof.trace.run.endings import restart_count, stem_of
from commprof.trace.run.processes import State, state_of

_KEY = "commprof/job_directory"
#: How long a rank waits for rank 0's choice before it records to the given directory.
_PATIENCE = timedelta(seconds=10)
_MOST_JOBS = 1_000
#: Environment variables that identify a launched job, and the file that stores their values.
_LAUNCH = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")
_LAUNCH_FILE = "launch.txt"
#: Maximum time in which a rank that has made this file writes the content.
_WRITES_WITHIN_S = 2.0

#: Trace files that this module has made, and that no profiler has opened yet.
_taken: set[Path] = set()


def trace_name(rank: int) -> str:
    """Returns the file name of a rank's trace. After a restart, the name includes the attempt."""
    return stem_of(rank, restart_count()) + ".trace"


def agree(directory: Path) -> Path:
    """Agrees with the other ranks on the job's directory, and returns it.

    Call it on all ranks after ``init_process_group``, the same number of times on each rank.
    Without a default group, the launcher's environment variables identify the job.

    Raises:
        CommprofError: rank 0 (without a default group: this rank) cannot make a trace in the
            directory, or TORCHELASTIC_RESTART_COUNT in the environment is not a number.
    """
    if not dist.is_initialized():
        rank, world_size = rank_and_world_size()
        if world_size > 1:
            return directory / _take_by_launch(directory, rank)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return directory / _take(directory, 0)
    store = _store()
    if store is None:
        return directory
    rank = dist.get_rank()
    try:
        key = _next_key(store, rank)
    except RuntimeError:  # the store no longer exists
        return directory
    if rank == 0:
        name = ""
        try:
            name = _take(directory, 0)
        finally:
            store.set(key, name)  # also after an error, because the other ranks wait for it
        return directory / name
    try:
        store.wait([key], _PATIENCE)
        return directory / bytes(store.get(key)).decode()
    except (RuntimeError, UnicodeDecodeError):
        return directory


def _next_key(store: Any, rank: int) -> str:
    """Returns the key under which rank 0 stores its next choice; all ranks get the same key.

    The store may outlive process groups and restarts, as torchrun's store does. So the key contains
    the attempt and the number of this call.
    """
    attempt = f"{_KEY}/attempt_{restart_count()}"
    return f"{attempt}/{store.add(f'{attempt}/calls_of_rank_{rank}', 1)}"


def _store() -> Any:
    """Returns the default group's store; None if the backend has no store, such as MPI."""
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError, KeyError):
        return None


def _take(directory: Path, rank: int) -> str:
    """Makes this rank's trace in the first directory that no other job uses.

    Returns the name of the subdirectory, such as ``job_2``; empty for ``directory`` itself.
    """
    names = ["", *(f"job_{number}" for number in range(2, _MOST_JOBS + 1))]
    own: list[str] = []
    if restart_count():  # the first call after a restart takes the previous attempt's directory
        own = _of_this_job(directory, names, rank) or [""]
    for name in [*own, *names]:
        path = directory.absolute() / name / trace_name(rank)
        if path.exists() or (name not in own and any(path.parent.glob("rank_*.trace"))):
            continue
        try:
            claim(path)
        except CommprofError:
            if path.exists():
                continue  # another job has taken this name meanwhile
            raise
        _taken.add(path)
        return name
    raise CommprofError(f"{directory} holds {_MOST_JOBS} jobs, the maximum; name a new directory")


def _take_by_launch(directory: Path, rank: int) -> str:
    """Makes this rank's trace in the directory of the other ranks of the same launcher.

    The first rank writes the launcher's variables into a file of the directory. Later ranks look
    for the directory by this file.

    Returns the name of the subdirectory, such as ``job_2``; empty for ``directory`` itself.
    """
    for name in ["", *(f"job_{number}" for number in range(2, _MOST_JOBS + 1))]:
        place = directory.absolute() / name
        path = place / trace_name(rank)
        if path.exists() or not _is_of_this_launch(place):
            continue
        try:
            claim(path)
        except CommprofError:
            if path.exists():
                continue
            raise
        _taken.add(path)
        return name
    raise CommprofError(f"{directory} holds {_MOST_JOBS} jobs, the maximum; name a new directory")


def _is_of_this_launch(place: Path) -> bool:
    """True if ``place`` is used by ranks of this launcher, or by no rank yet."""
    own, path = " ".join(os.environ.get(name, "") for name in _LAUNCH), place / _LAUNCH_FILE
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Traces without this file belong to another job, because a launch makes the file first.
        if any(place.glob("rank_*.trace")) and not path.exists():
            return False
        with open(path, "x") as file:
            file.write(own)
            return True
    except FileExistsError:
        return _written(path) == own
    except OSError as error:
        raise CommprofError(f"cannot write to {place}: {error.strerror}") from None


def _written(path: Path) -> str:
    """Waits until another rank has written a file, and returns the file's content.

    Returns "" if the file stays empty or cannot be read.
    """
    until_s = time.monotonic() + _WRITES_WITHIN_S
    with suppress(OSError):
        while not (text := path.read_text(errors="replace")) and time.monotonic() < until_s:
            time.sleep(0.01)
        return text
    return ""


def _of_this_job(directory: Path, names: list[str], rank: int) -> list[str]:
    """Finds the directory that this elastic job used before its restart.

    Returns one of ``names`` in a list, or an empty list. Prefers a directory whose trace has this
    job's elastic run id.
    """
    found = [name for name in names if (directory / name / f"rank_{rank}.trace").exists()]
    own = []
    for name in tuple(found):
        with suppress(CommprofError, OSError):
            metadata = read_first_metadata(directory / name / f"rank_{rank}.trace")
            if state_of(metadata) in (State.RUNS, State.STOPPED):
                found.remove(name)  # another replica, which has not ended, records there
            elif metadata.get("replica", "") == replica_label():
                own += [name] * (metadata.get("elastic_run_id") == elastic_run_id())
    return (own or found)[-1:]


def beside_other_replicas(path: Path) -> Path:
    """Returns ``path``, or a path in a ``job_N`` if another process records there.

    Only a process of world size 1 without a default group gets another path. Each of torchft's
    replicas has a launcher of its own, and so has rank 0 and world size 1. All these replicas would
    otherwise record to the same path.
    """
    alone = not dist.is_initialized() and rank_and_world_size()[1] == 1
    if not alone or path in _taken or not path.exists() or not _is_recorded_to(path.parent):
        return path
    name = _take(path.parent, 0)
    print(
        f"commprof: another replica or job already records to {path}, so this process records "
        f"to {path.parent / name}",
        file=sys.stderr,
    )
    return path.parent / name / path.name


def _is_recorded_to(directory: Path) -> bool:
    """True if a process may still record to the directory, or to a ``job_N`` in it."""
    for path in [*directory.glob("rank_*.trace"), *directory.glob("job_*/rank_*.trace")]:
        with suppress(CommprofError, OSError):
            if path.stat().st_size == 0:
                return True  # a process is about to begin recording
            trace = read_trace(path)
            if not trace.complete and state_of(trace.metadata) is not State.GONE:
                return True
    return False


def claim(path: Path) -> None:
    """Creates an empty trace file. Accepts an existing file only if ``agree`` has made it.

    Raises:
        CommprofError: the file exists or cannot be made.
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
            f"{path} exists already; give this run a directory of its own, or remove the file"
        ) from None
    except OSError as error:
        raise CommprofError(f"cannot write {path}: {error.strerror}") from None


_MEMORY = Path("/dev/shm")


def ring_prefix() -> str:
    """Returns the path prefix of the ring files in ``/dev/shm``.

    Empty if ``/dev/shm`` cannot be used. The rings then lie in the process's own memory.
    """
    name = f"commprof-{os.getuid()}-{os.getpid()}-{secrets.token_hex(4)}-"
    in_memory = os.path.ismount(_MEMORY.resolve()) and os.access(_MEMORY, os.W_OK)
    return str(_MEMORY / name) if in_memory else ""


def own_rings(prefix: str, path: Path, session: int, metadata: dict[str, Any]) -> None:
    """Writes a file that names the owner of the rings: this process and its trace.

    The host's first rank also removes this user's old rings whose process and trace are both gone.
    ``prefix`` is a result of ``ring_prefix``. The other arguments describe the trace.
    """
    if metadata["capture"] != "native" or not prefix:
        return
    with suppress(OSError):
        write_owner(prefix, path, session, metadata)
    if metadata["local_rank"] == 0:
        with suppress(OSError):
            remove_orphans()
