"""Finds out which rank of its job this process is, from the variables that its launcher set.

The variables of torchrun are tried first (some other launchers set the same variables), because
torchrun's ranks may run inside a task of another launcher. Variables of Open MPI, MVAPICH and Hydra
(MPICH, Intel MPI) are tried before Slurm's, because ranks of MPI inherit Slurm's variables from the
job in which mpirun ran. A task of Slurm is a process of a job step that srun started: batch scripts
and shells of salloc have Slurm's variables too, but are no tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_DIGITS = 9
#: Slurm's own steps (batch, extern, interactive and others) have ids just below 2**32.
_SLURM_OWN_STEPS = 0xFFFF_FFF0


@dataclass(frozen=True)
class Launched:
    """A rank as its launcher's variables describe it."""

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
#: MPI's launchers, each with variables of its own.
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
#: PMI's variables alone, without Hydra's MPI_LOCAL*. They are tried last, because srun sets PMI's
#: variables for its own tasks too.
_PMI = _Names("mpirun", "PMI_RANK", "PMI_SIZE", "", "")
#: Variables with the index of a launcher's task on its host. It is not always a rank's index: a
#: task may start several ranks itself.
_LOCAL_RANKS_OF_TASKS = (*(names.local_rank for names in _MPI), "SLURM_LOCALID")


def launched_as(variables: Mapping[str, str]) -> Launched | None:
    """Returns the rank that a launcher gave this process; None if no launcher did.

    Variables count as not set if their values are not a rank and a world size larger than the rank.
    """
    return (
        _read(variables, _TORCHRUN)
        or next((rank for names in _MPI if (rank := _of_mpi(variables, names))), None)
        or _slurm_task(variables)
        or _read(variables, _PMI)
    )


def script_first(words: Sequence[str]) -> list[str]:
    """Moves options that a launcher put in front of the script to the place after the script.

    There they are the first of the script's arguments, as if the launcher had started the script
    itself.

    Args:
        words: ``[--local_rank=N] [-m] SCRIPT [ARGS...]``; the option may be spelled
            ``--local-rank``, and the number may be a word of its own.
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
    """Returns the index, on this host, of the launcher's task that contains this process.

    If a task starts several ranks, all of them have its index. Returns 0 if no launcher has
    numbered the tasks.
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
    """Returns a variable's number, 0 or more; None if it is unset or holds anything else."""
    text = variables.get(name, "").strip()
    return int(text) if re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}", text) else None
