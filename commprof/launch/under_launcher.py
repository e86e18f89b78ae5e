"""Ranks that torchrun, srun or mpirun started.

In such a process, ``commprof run`` starts no ranks, because the process itself is a rank. Rank 0
sends the path of the job file to the other ranks through the store of the rendezvous.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from commprof.errors import CommprofError, UsageError
from commprof.launch.rendezvous import endpoint_parts
from commprof.launched import Launched, launched_as

_PATIENCE_S = 300.0
"""Seconds to wait for rank 0's message: the launcher may start ranks one after the other."""
_SEEN_WITHIN_S = 60.0
"""Seconds to wait for rank 0's file: network file systems may show the file late."""
_KEY = "job"
_SCONTROL_TIMEOUT_S = 30

#: Range of the default ports, below Linux's ephemeral ports. The job's id selects the port.
_FIRST_PORT, _PORTS = 20_000, 10_000
_STEPS_PER_JOB = 16
#: Variables that hold the job's id: one of Open MPI 4, one of Open MPI 5 and two of Hydra.
_MPI_JOBS = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_KVS", "PMI_JOBID")


@dataclass(frozen=True)
class LaunchedRank:
    """A process that a launcher started as a rank, and the address of rank 0."""

    launcher: str
    """The launcher's command: torchrun, srun or mpirun."""
    rank: int
    world_size: int
    local_rank: int
    local_ranks: int
    """Number of ranks per host; an estimate if the launcher does not set it."""
    hosts: int
    address: str
    """Address of rank 0's host."""
    port: int

    @property
    def endpoint(self) -> str:
        """The endpoint in the form of ``--rdzv-endpoint``."""
        return f"{self.address}:{self.port}"

    def export(self) -> None:
        """Sets the environment variables that torch.distributed reads."""
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.world_size),
            LOCAL_RANK=str(self.local_rank),
            LOCAL_WORLD_SIZE=str(self.local_ranks),
            MASTER_ADDR=self.address,
            MASTER_PORT=str(self.port),
        )


def given_rank(
    variables: Mapping[str, str], nodes: int | None = None, endpoint: str | None = None
) -> LaunchedRank | None:
    """Returns the rank that a launcher gave this process; None without a launcher or other ranks.

    Also None if a task of srun or mpirun starts the ranks of its machine itself: with ``--nnodes``,
    or if srun started one task per node.

    Args:
        variables: the environment.
        nodes: --nnodes; None if not given.
        endpoint: --rdzv-endpoint, for ranks of srun and mpirun; None if not given.

    Raises:
        UsageError: the process is a rank, but its rendezvous is not known.
    """
    if number_of(variables, "WORLD_SIZE") > 1 and "LOCAL_RANK" in variables:
        return _of_torchrun(variables)
    task = None if nodes is not None else launched_as(variables)
    if task is None or task.world_size < 2:
        return None
    if task.launcher == "mpirun":
        return _of_mpi(variables, task, endpoint)
    tasks, hosts = slurm_tasks_and_hosts(variables)
    if task.launcher == "srun" and task.local_rank is not None and tasks > hosts:
        return _of_slurm(variables, task, hosts, endpoint)
    return None


def adopt_rank(nproc_given: bool = False) -> None:
    """Sets torchrun's variables if srun or mpirun started this process as one of several ranks.

    Does nothing if RANK or WORLD_SIZE is set already.

    Args:
        nproc_given: True if the command line gives a number of ranks. With one task of srun per
            node, each task then starts this number of ranks, and no variables are set.

    Raises:
        UsageError: the process is a rank, but its rendezvous is not known.
    """
    task = launched_as(os.environ)
    if task is None or task.world_size < 2 or {"RANK", "WORLD_SIZE"} & os.environ.keys():
        return
    if task.launcher == "mpirun":
        _of_mpi(os.environ, task, None).export()
    elif task.launcher == "srun":
        tasks, hosts = slurm_tasks_and_hosts(os.environ)
        if not (nproc_given and tasks == hosts):
            _of_slurm(os.environ, task, hosts, None).export()


def slurm_tasks_and_hosts(variables: Mapping[str, str]) -> tuple[int, int]:
    """Returns the numbers of tasks and hosts of the Slurm step; outside of a step, of the job."""
    return (
        number_of(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        number_of(variables, "SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    )


def _of_torchrun(variables: Mapping[str, str]) -> LaunchedRank:
    needed = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if wrong := _unusable(variables, needed):
        raise UsageError(
            f"a launcher started this process as one of {variables['WORLD_SIZE']} ranks, but "
            f"{', '.join(wrong)} is unset or not a number: use torchrun, which sets "
            f"{', '.join(needed)}, or start this process once, without a launcher"
        )
    world_size = int(variables["WORLD_SIZE"])
    local = min(number_of(variables, "LOCAL_WORLD_SIZE", default=world_size), world_size)
    return LaunchedRank(
        "torchrun",
        int(variables["RANK"]),
        world_size,
        int(variables["LOCAL_RANK"]),
        local,
        number_of(variables, "GROUP_WORLD_SIZE", default=-(-world_size // local)),
        variables["MASTER_ADDR"],
        int(variables["MASTER_PORT"]),
    )


def is_rank(variables: Mapping[str, str]) -> bool:
    """True if a launcher started this process as a rank, according to the environment."""
    return {"RANK", "WORLD_SIZE"} <= variables.keys()


def rank_and_world_size(variables: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the rank and world size that a launcher set in the environment; None if none did.

    Raises:
        UsageError: RANK and WORLD_SIZE are set, but one of RANK, WORLD_SIZE, MASTER_ADDR and
            MASTER_PORT is unset or not a number.
    """
    if not is_rank(variables):
        return None
    if wrong := _unusable(variables, ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        raise UsageError(
            "RANK and WORLD_SIZE in the environment make this process one rank of a launcher, but "
            f"these variables are unset or not a number: {', '.join(wrong)}. Use torchrun, or "
            "unset RANK and WORLD_SIZE, so that commprof starts the ranks"
        )
    return int(variables["RANK"]), int(variables["WORLD_SIZE"])


def _unusable(variables: Mapping[str, str], needed: Sequence[str]) -> list[str]:
    return [
        name
        for name in needed
        if not (value := variables.get(name, ""))
        or (name != "MASTER_ADDR" and not value.isdecimal())
    ]


def _of_mpi(variables: Mapping[str, str], task: Launched, endpoint: str | None) -> LaunchedRank:
    local = min(task.local_world_size or task.world_size, task.world_size)
    hosts = -(-task.world_size // local)
    job = next((variables[name] for name in _MPI_JOBS if variables.get(name)), "")
    port = _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS
    address = variables.get("MASTER_ADDR") or ("localhost" if hosts == 1 else "")
    if endpoint is not None:
        address, port = endpoint_parts(endpoint)
    elif not address:
        raise UsageError(
            f"mpirun started this process as one of {task.world_size} ranks on several hosts, but "
            "MASTER_ADDR is unset: give mpirun -x MASTER_ADDR=HOST (Open MPI) or -genv MASTER_ADDR "
            "HOST (MPICH, Intel MPI). HOST is the host of rank 0"
        )
    else:
        port = number_of(variables, "MASTER_PORT", default=port)
    # With PMI's variables alone, the hosts of the ranks are not known. All ranks then count as
    # ranks of one host.
    local_rank = task.rank % local if task.local_rank is None else task.local_rank
    return LaunchedRank(
        "mpirun", task.rank, task.world_size, local_rank, local, hosts, address, port
    )


def _of_slurm(
    variables: Mapping[str, str], task: Launched, hosts: int, endpoint: str | None
) -> LaunchedRank:
    job, step = (
        number_of(variables, name, default=0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    port = _FIRST_PORT + (job * _STEPS_PER_JOB + step) % _PORTS
    if endpoint is not None:
        address, port = endpoint_parts(endpoint)
    else:
        address = variables.get("MASTER_ADDR") or _first_host(variables, hosts)
        port = number_of(variables, "MASTER_PORT", default=port)
    return LaunchedRank(
        "srun",
        task.rank,
        task.world_size,
        task.local_rank or 0,
        -(-task.world_size // hosts),
        hosts,
        address,
        port,
    )


def _first_host(variables: Mapping[str, str], hosts: int) -> str:
    if hosts == 1:
        return "localhost"
    names = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", names],
            capture_output=True,
            text=True,
            timeout=_SCONTROL_TIMEOUT_S,
            check=True,
        )
        return done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        raise UsageError(
            f"scontrol does not name the first host of {names!r}: give --rdzv-endpoint HOST:PORT "
            "with an address of that host, or set MASTER_ADDR and MASTER_PORT"
        ) from None


class StoreMessage:
    """Message from rank 0 to the other ranks, sent through the store of the rendezvous.

    The object must live until its rank has ended: the object may own the server of the store, and
    torch's process group uses the same server.
    """

    def __init__(self, given: LaunchedRank, patience_s: float = _PATIENCE_S) -> None:
        """Connects to the store. Raises CommprofError if the store cannot be reached."""
        from torch.distributed import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self._given, self._patience = given, timedelta(seconds=patience_s)
        try:
            store, _, _ = next(rendezvous("env://", timeout=self._patience))
        except (RuntimeError, ValueError, OSError) as error:
            raise CommprofError(
                f"rank {given.rank} on {platform.node()} did not reach {given.endpoint}, the "
                f"rendezvous of the {given.world_size} ranks of {given.launcher}, within "
                f"{patience_s:g} s: {str(error).partition(chr(10))[0]}"
            ) from None
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"commprof_run/{attempt}", store)

    def say(self, **word: Any) -> None:
        """Sends the message; called by rank 0."""
        self._store.set(_KEY, json.dumps(word))

    def hear(self) -> dict[str, Any]:
        """Receives rank 0's message; called by the other ranks.

        Raises CommprofError if no message comes in time.
        """
        try:
            self._store.wait([_KEY], self._patience)
            word: dict[str, Any] = json.loads(self._store.get(_KEY))
        except RuntimeError:
            raise CommprofError(
                f"rank {self._given.rank}: rank 0 ended, or did not send settings within "
                f"{self._patience.total_seconds():g} s; see the output of rank 0"
            ) from None
        return word


def await_file(path: Path, given: LaunchedRank, patience_s: float = _SEEN_WITHIN_S) -> None:
    """Waits until this host sees rank 0's file. Raises CommprofError if the wait is too long."""
    end = time.monotonic() + patience_s
    while not path.exists():
        if time.monotonic() > end:
            raise CommprofError(
                f"rank {given.rank} on {platform.node()} did not see {path}, which rank 0 wrote, "
                f"within {patience_s:g} s: give --output DIR, on a file system that all hosts share"
            )
        time.sleep(0.05)


def number_of(variables: Mapping[str, str], *names: str, default: int = 1) -> int:
    """Returns the number in the first variable of ``names`` that is set.

    Returns ``default`` if no variable is set, or if the value is not a whole number.
    """
    value = next((variables[name] for name in names if name in variables), "")
    return int(value) if value.isdecimal() else default
