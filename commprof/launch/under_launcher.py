"""A rank that torchrun or srun started: which one it is, and what rank 0 tells all the others.

``commprof run`` then starts nothing: each rank trains its part of the one world size. What runs and
where is rank 0's to say, through the store in which the ranks meet.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from commprof.errors import CommprofError, UsageError
from commprof.launch.rendezvous import endpoint_parts

_PATIENCE_S = 300.0
"""For rank 0's word; the launcher may start ranks one after the other."""
_SEEN_WITHIN_S = 60.0
"""What rank 0 has written; file systems over a network may take some seconds."""
_KEY = "job"
_SCONTROL_TIMEOUT_S = 30

#: Where srun's ranks meet if nobody says it: a port by job and step, below those of clients.
_FIRST_PORT, _PORTS = 20_000, 10_000
_STEPS_PER_JOB = 16


@dataclass(frozen=True)
class LaunchedRank:
    """Which rank of how many a launcher started, and where all ranks meet."""

    launcher: str
    """As it is typed."""
    rank: int
    world_size: int
    local_rank: int
    local_ranks: int
    """On a host; at most, where hosts have different numbers of them."""
    hosts: int
    address: str
    """Address of rank 0's host."""
    port: int

    @property
    def endpoint(self) -> str:
        """The endpoint as ``--rdzv-endpoint`` takes it."""
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
    """Finds the rank that a launcher gave this process; None where it is the only one.

    One task per node under srun is none either: ``commprof run`` starts that machine's ranks, and
    so does a task that is told the number of machines.

    Args:
        variables: the environment.
        nodes: --nnodes; None where it was not given.
        endpoint: --rdzv-endpoint, which srun's ranks take; None where it was not given.

    Raises:
        UsageError: it is a rank, and where the ranks meet cannot be found out.
    """
    if number_of(variables, "WORLD_SIZE") > 1 and "LOCAL_RANK" in variables:
        return _of_torchrun(variables)
    tasks = number_of(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    hosts = number_of(variables, "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    own = [variables.get(f"SLURM_{name}", "") for name in ("STEP_ID", "PROCID", "LOCALID")]
    if nodes is None and tasks > hosts and all(value.isdecimal() for value in own):
        return _of_slurm(variables, tasks, hosts, endpoint)
    return None


def _of_torchrun(variables: Mapping[str, str]) -> LaunchedRank:
    needed = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    numbers = [name for name in needed if name != "MASTER_ADDR"]
    wrong = [name for name in numbers if not variables.get(name, "").isdecimal()]
    wrong += [] if variables.get("MASTER_ADDR") else ["MASTER_ADDR"]
    if wrong:
        raise UsageError(
            f"a launcher started this process as one of {variables['WORLD_SIZE']} ranks, but left "
            f"{', '.join(wrong)} unset or no number: start it by torchrun, which sets "
            f"{', '.join(needed)}, or once and without a launcher"
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


def _of_slurm(
    variables: Mapping[str, str], tasks: int, hosts: int, endpoint: str | None
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
        int(variables["SLURM_PROCID"]),
        tasks,
        int(variables["SLURM_LOCALID"]),
        -(-tasks // hosts),
        hosts,
        address,
        port,
    )


def _first_host(variables: Mapping[str, str], hosts: int) -> str:
    """Name of the first host of a Slurm step, whose list Slurm's own tool spells out."""
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
            f"scontrol does not say which is the first host of {names!r}: give --rdzv-endpoint "
            "HOST:PORT, an address of that host, or set MASTER_ADDR and MASTER_PORT"
        ) from None


class StoreMessage:
    """Message of rank 0 in the store, before any rank trains; kept until this rank is done.

    Without torchrun the store is rank 0's own, and torch's process group shares it.
    """

    def __init__(self, given: LaunchedRank, patience_s: float = _PATIENCE_S) -> None:
        """Meet the others. Raises CommprofError where this rank does not reach the store."""
        from torch.distributed import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self._given, self._patience = given, timedelta(seconds=patience_s)
        try:
            store, _, _ = next(rendezvous("env://", timeout=self._patience))
        except (RuntimeError, ValueError, OSError) as error:
            raise CommprofError(
                f"rank {given.rank} on {platform.node()} does not reach {given.endpoint}, where "
                f"the {given.world_size} ranks that {given.launcher} starts shall meet, within "
                f"{patience_s:g} s: {str(error).partition(chr(10))[0]}"
            ) from None
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"commprof_run/{attempt}", store)

    def say(self, **word: Any) -> None:
        """Sends the message; called by rank 0."""
        self._store.set(_KEY, json.dumps(word))

    def hear(self) -> dict[str, Any]:
        """Receives the message on other ranks. Raises CommprofError if none comes in time."""
        try:
            self._store.wait([_KEY], self._patience)
            word: dict[str, Any] = json.loads(self._store.get(_KEY))
        except RuntimeError:
            raise CommprofError(
                f"rank {self._given.rank}: rank 0 ended, or did not say within "
                f"{self._patience.total_seconds():g} s what to train; see what rank 0 printed"
            ) from None
        return word


def await_file(path: Path, given: LaunchedRank, patience_s: float = _SEEN_WITHIN_S) -> None:
    """Return once this host sees what rank 0 has written. Raises CommprofError if it never does."""
    end = time.monotonic() + patience_s
    while not path.exists():
        if time.monotonic() > end:
            raise CommprofError(
                f"rank {given.rank} on {platform.node()} does not see {path}, which rank 0 wrote, "
                f"within {patience_s:g} s: give --output DIR, on a file system that all hosts share"
            )
        time.sleep(0.05)


def number_of(variables: Mapping[str, str], *names: str, default: int = 1) -> int:
    """Value of the first variable that is set; the default where it is no number."""
    value = next((variables[name] for name in names if name in variables), "")
    return int(value) if value.isdecimal() else default
