"""Reads the rank of this process from the environment variables of its launcher.

Torchrun's variables are tried first, because torchrun may run inside a task of another launcher.
MPI's variables are tried before Slurm's, because mpirun may run inside a Slurm job. Batch scripts
have Slurm's variables too, but they are not ranks: srun did not start them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_DIGITS = 9
#: Slurm's own steps, such as the step of a batch script, have this id or a higher id.
_SLURM_OWN_STEPS = 0xFFFF_FFF0


@dataclass(frozen=True)
class Launched:
    """A rank, as the launcher's variables describe it."""

    #: The launcher's command: torchrun, mpirun or srun.
    launcher: str
    rank: int
    world_size: int
    #: Rank within the host; None if the launcher does not set it.
    local_rank: int | None
    #: Number of ranks on the host; None if the launcher does not set it.
    local_world_size: int | None


@dataclass(frozen=True)
class _Names:
    """Names of one launcher's variables; a name is "" if the launcher sets no such variable."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_TORCHRUN = _Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
#: Variables of Open MPI, MVAPICH and Hydra (MPICH, Intel MPI).
_MPI = (
    _Names(
        "mpirun",
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Names(
        "mpirun",
        *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        *("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Names("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
#: Tried last, because srun sets these variables too.
_PMI = _Names("mpirun", "PMI_RANK", "PMI_SIZE", "", "")
#: Variables that hold the index of a launcher's task on its host. A task may start several ranks.
_LOCAL_RANKS_OF_TASKS = (*(names.local_rank for names in _MPI), "SLURM_LOCALID")


def launched_as(variables: Mapping[str, str]) -> Launched | None:
    """Returns the rank that a launcher gave this process; None if no launcher did.

    Variables are ignored if their values are not a rank and a larger world size.
    """
    return (
        _read(variables, _TORCHRUN)
        or next((rank for names in _MPI if (rank := _of_mpi(variables, names))), None)
        or _slurm_task(variables)
        or _read(variables, _PMI)
    )


def script_first(words: Sequence[str]) -> list[str]:
    """Moves the launcher's ``--local_rank`` options to the front of the script's arguments.

    Args:
        words: ``[--local_rank=N] [-m] SCRIPT [ARGS...]``. The option may also be spelled
            ``--local-rank=N`` or ``--local_rank N``.
    """
    option, number = re.compile(r"--local[_-]rank(=-?\d+)?"), re.compile(r"-?\d+")
    first = 0
    while first < len(words) and (match := option.fullmatch(words[first])):
        apart = match[1] is None and number.fullmatch(
            words[first + 1] if words[first + 1 :] else ""
        )
        first += 2 if apart else 1
    script = first + (2 if words[first : first + 1] == ["-m"] else 1)
    return [*words[first:script], *words[:first], *words[script:]]


def local_rank_of_task(variables: Mapping[str, str]) -> int:
    """Returns the index of this process's launcher task on this host; 0 without such an index.

    If a task starts several ranks, all these ranks get the index of the task.
    """
    for name in _LOCAL_RANKS_OF_TASKS:
        if name in variables:
            return _number(variables, name) or 0
    return 0


def _of_mpi(variables: Mapping[str, str], names: _Names) -> Launched | None:
    return _read(variables, names) if names.local_rank in variables else None


def _read(variables: Mapping[str, str], names: _Names) -> Launched | None:
    rank, world_size = (_number(variables, name) for name in (names.rank, names.world_size))
    if rank is None or world_size is None or rank >= world_size:
        return None
    return Launched(
        names.launcher,
        rank,
        world_size,
        _number(variables, names.local_rank),
        _number(variables, names.local_world_size),
    )


def _slurm_task(variables: Mapping[str, str]) -> Launched | None:
    step = variables.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _SLURM_OWN_STEPS:
        return None
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS"
    return _read(variables, _Names("srun", "SLURM_PROCID", tasks, "SLURM_LOCALID", ""))


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "").strip()
    return int(text) if re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}", text) else None
