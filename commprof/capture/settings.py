"""Reads, checks and writes a rank's settings, which are environment variables."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from commprof import variables
from commprof.errors import UsageError
from commprof.trace.schema import MODES
from commprof.variables import Variable

#: Variables that other modules read; this module only checks them.
_READ_ELSEWHERE = (
    variables.DEVICE_EVENTS,
    variables.NATIVE,
    variables.NCCL,
    variables.NCCL_PLUGIN,
)


def _of(variable: Variable) -> Any:
    return field(default=variable.default, metadata={"variable": variable})


@dataclass(frozen=True)
class RankSettings:
    """Settings of a recording rank from its environment; ``commprof.variables`` explains them."""

    mode: str = _of(variables.MODE)
    switch_signal: str = _of(variables.SIGNAL)
    stacks: bool = _of(variables.STACKS)
    clock: str = _of(variables.CLOCK)
    gradient_norms_every: int = _of(variables.GRADIENT_NORMS)
    check_sync_every: int = _of(variables.CHECK_SYNC)
    #: None leaves DDP's default.
    bucket_cap_mb: float | None = _of(variables.BUCKET_CAP_MB)
    #: In the format that ``commprof.tune.trials.sharding`` parses.
    fsdp: str = _of(variables.FSDP)
    #: The next four settings apply to scripts that do not call commprof; ``capture.boot`` checks
    #: them.
    hook: str = _of(variables.HOOK)
    trial: str = _of(variables.TRIAL)
    metrics: str = _of(variables.METRICS)
    watchdog: str = _of(variables.WATCHDOG)
    #: Id of the process whose descendants may read this rank's stacks; None to allow no process.
    tracer: int | None = _of(variables.PTRACER)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> RankSettings:
        """Reads the settings from environment variables, by default from this process's variables.

        Raises:
            UsageError: a variable's value is not valid.
        """
        try:
            for variable in _READ_ELSEWHERE:
                variable.value(environment)
            return cls(
                **{one.name: one.metadata["variable"].value(environment) for one in fields(cls)}
            )
        except ValueError as error:
            raise UsageError(str(error)) from None

    def to_environment(self) -> dict[str, str]:
        """Returns environment variables with these settings; default settings are left out."""
        found = ((one.metadata["variable"], getattr(self, one.name)) for one in fields(self))
        return {str(name): name.text(value) for name, value in found if value != name.default}

    @property
    def switch_signal_number(self) -> int:
        """Number of the signal that switches modes; 0 if there is none."""
        return 0 if self.switch_signal == "none" else int(signal.Signals[self.switch_signal])

    def leave_for_ranks(self) -> None:
        """Puts the settings into this process's environment, which the ranks inherit."""
        for one in fields(self):
            os.environ.pop(one.metadata["variable"], None)
        os.environ.update(self.to_environment())


def mode_code(mode: str | None) -> int:
    """Returns the position of a capture mode in ``schema.MODES``.

    Args:
        mode: name of the mode; None: the mode that COMMPROF_MODE sets.

    Raises:
        UsageError: there is no such mode.
    """
    if mode is None:
        mode = RankSettings.from_environment().mode
    if mode not in MODES:
        raise UsageError(
            f"mode={mode!r} is not valid (allowed: {', '.join(MODES)}); choose one of these, or "
            "leave it out"
        )
    return MODES.index(mode)


def check_sync_fits_trial(check_sync_every: int, headroom: int) -> None:
    """Refuses to compare the ranks' models in a trial that has the candidate ``noop``.

    With ``noop`` no gradients are exchanged, so the models differ.

    Args:
        check_sync_every: number of steps between two comparisons; 0: none.
        headroom: the trial's setting ``headroom``; 0: ``noop`` is not among the candidates.

    Raises:
        UsageError: models would be compared in a trial with ``noop``.
    """
    if check_sync_every and headroom:
        raise UsageError(
            f"--check-sync {check_sync_every} (or {variables.CHECK_SYNC}) would report differing "
            f"models whenever the trial runs its candidate noop, which exchanges no gradients; "
            f"give headroom=0 in the trial, or do not compare models"
        )


def check_kernels() -> None:
    """Checks the environment variables of the compression kernels before training uses them.

    Raises:
        UsageError: one of these variables has a value that is not valid.
    """
    if not any(os.environ.get(name) for name in (variables.SIMD, variables.KERNEL_THREADS)):
        return
    from commprof import _native  # imported here, because it imports torch

    if _native.tune_error is not None:
        return
    for read in (_native.tune.simd_level, _native.tune.kernel_threads):
        try:
            read()
        except ValueError as error:
            raise UsageError(f"{error}; choose one of these, or unset the variable") from None


CONTROL_FILE = "control"


def control_path(directory: Path) -> Path:
    """Returns the path of the file that switches the mode of all ranks in ``directory``.

    If ``commprof run`` made a directory for each world size, these directories share one file.
    """
    in_run = directory.name.startswith("world_") and (directory.parent / "run.json").exists()
    return (directory.parent if in_run else directory) / CONTROL_FILE
