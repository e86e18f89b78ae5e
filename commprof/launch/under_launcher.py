"""A rank that torchrun, srun or mpirun started: its number, and rank 0's message to the others.

In such a process, ``commprof run`` starts no ranks: the process is one rank, and the job trains at
one world size, the launcher's number of ranks. Rank 0 tells the other ranks, through the
rendezvous' store, where the job file is.
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
"""Time to wait for rank 0's message; the launcher may start ranks one after the other."""
_SEEN_WITHIN_S = 60.0
"""Time to wait for rank 0's file to appear; network file systems may take some seconds."""
_KEY = "job"
_SCONTROL_TIMEOUT_S = 30

#: Default ports: for ranks of srun, chosen from the ids of Slurm job and job step; for ranks of
#: mpirun, from mpirun's job id. They are below Linux's ephemeral ports.
_FIRST_PORT, _PORTS = 20_000, 10_000
_STEPS_PER_JOB = 16
#: Variables with the job id of Open MPI 4, Open MPI 5 and Hydra.
_MPI_JOBS = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_KVS", "PMI_JOBID")


@dataclass(frozen=True)
class LaunchedRank:
    """Rank of a process that a launcher started, and the rendezvous of all ranks."""

    launcher: str
    """The launcher's command: torchrun, srun or mpirun."""
    rank: int
    world_size: int
    local_rank: int
    local_ranks: int
    """Ranks per host; the largest number if hosts differ."""
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
    """Returns the rank that a launcher gave this process; None if no launcher did.

    Also None for srun with one task per node, and for tasks of srun and mpirun with ``--nnodes``.
    In these cases each task is a ``commprof run`` that starts the ranks of one machine.

    Args:
        variables: the environment.
        nodes: --nnodes; None if not given.
        endpoint: --rdzv-endpoint, which ranks of srun and mpirun use; None if not given.

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
    """Sets the variables of a torchrun rank in a rank that srun or mpirun started.

    Does nothing if RANK or WORLD_SIZE is set, if no launcher started several processes, or if
    srun started one task per node and each task starts its node's ranks itself.

    Args:
        nproc_given: True if the command line asks for a number of ranks.

    Raises:
        UsageError: the process is a rank, but its rendezvous cannot be found out.
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
    """Returns the numbers of tasks and hosts of a Slurm step, or of the job outside of a step."""
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
        UsageError: RANK and WORLD_SIZE are set, but not all that ``init_process_group`` needs.
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
    """Returns the variables that are unset, or that should be a number and are not."""
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
            "HOST (MPICH, Intel MPI), the host of rank 0"
        )
    else:
        port = number_of(variables, "MASTER_PORT", default=port)
    # Launchers that set only PMI's variables give neither the rank within the host nor the number
    # of ranks on the host. All ranks then count as ranks of one host.
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
    """Returns the name of the first host of a Slurm step, as Slurm's own tool lists the hosts."""
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
    """Message from rank 0 to the other ranks in the rendezvous' store, before the training.

    The object must live until its rank is done: without torchrun, the store's server runs in the
    process of rank 0, and torch's process group uses the same server.
    """

    def __init__(self, given: LaunchedRank, patience_s: float = _PATIENCE_S) -> None:
        """Connects to the store. Raises CommprofError if this rank does not reach it."""
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
    """Waits until this host sees rank 0's file. Raises CommprofError if it does not appear."""
    end = time.monotonic() + patience_s
    while not path.exists():
        if time.monotonic() > end:
            raise CommprofError(
                f"rank {given.rank} on {platform.node()} did not see {path}, which rank 0 wrote, "
                f"within {patience_s:g} s: give --output DIR, on a file system that all hosts share"
            )
        time.sleep(0.05)


def number_of(variables: Mapping[str, str], *names: str, default: int = 1) -> int:
    """Returns the whole number in the first variable of ``names`` that is set.

    Returns ``default`` if none is set, or if the value of this variable is not a number.
    """
    value = next((variables[name] for name in names if name in variables), "")
    return int(value) if value.isdecimal() else default
