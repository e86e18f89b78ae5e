"""What a rank is told by its environment: read, checked and written in one place."""

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

#: Read by the recorder or the package itself: only checked here.
_READ_ELSEWHERE = (variables.DEVICE_EVENTS, variables.NATIVE)


def _of(variable: Variable) -> Any:
    """A field that holds what the variable says."""
    return field(default=variable.default, metadata={"variable": variable})


@dataclass(frozen=True)
class RankSettings:
    """What the environment asks of a rank that records; ``variables`` says what each means."""

    mode: str = _of(variables.MODE)
    switch_signal: str = _of(variables.SIGNAL)
    stacks: bool = _of(variables.STACKS)
    clock: str = _of(variables.CLOCK)
    gradient_norms_every: int = _of(variables.GRADIENT_NORMS)
    check_sync_every: int = _of(variables.CHECK_SYNC)
    #: None leaves DDP's own.
    bucket_cap_mb: float | None = _of(variables.BUCKET_CAP_MB)
    #: As ``commprof.trials.sharding`` takes it.
    fsdp: str = _of(variables.FSDP)
    #: The next four are of a script that does not call commprof, which checks them by itself.
    hook: str = _of(variables.HOOK)
    trial: str = _of(variables.TRIAL)
    metrics: str = _of(variables.METRICS)
    watchdog: str = _of(variables.WATCHDOG)
    #: None if nobody else may read the stacks.
    tracer: int | None = _of(variables.PTRACER)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> RankSettings:
        """Reads the settings from variables, those of this process if none are given.

        Raises:
            UsageError: a variable has a value that means nothing; it is named with what is allowed.
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
        """Returns the variables from which ``from_environment`` makes these settings."""
        found = ((one.metadata["variable"], getattr(self, one.name)) for one in fields(self))
        return {str(name): name.text(value) for name, value in found if value != name.default}

    @property
    def switch_signal_number(self) -> int:
        """Number of the signal that switches modes; 0 for none."""
        return 0 if self.switch_signal == "none" else int(signal.Signals[self.switch_signal])

    def leave_for_ranks(self) -> None:
        """Puts the settings into this process's environment, which the ranks inherit."""
        for one in fields(self):
            os.environ.pop(one.metadata["variable"], None)
        os.environ.update(self.to_environment())


def mode_code(mode: str | None) -> int:
    """Position in ``schema.MODES`` of ``mode``, or of the environment's mode for None.

    Raises:
        UsageError: no such mode.
    """
    if mode is None:
        mode = RankSettings.from_environment().mode
    if mode not in MODES:
        raise UsageError(
            f"mode={mode!r} means nothing (allowed: {', '.join(MODES)}); take one of these, or "
            "leave it out"
        )
    return MODES.index(mode)


def check_kernels() -> None:
    """Refuses at the start what the kernels would refuse in the middle of training.

    Raises:
        UsageError: a variable of theirs has a value that means nothing.
    """
    from commprof import _native  # imports torch

    if _native.native is None:
        return
    for read in (_native.native.simd_level, _native.native.kernel_threads):
        try:
            read()
        except ValueError as error:
            raise UsageError(f"{error}; take one of these, or unset the variable") from None


CONTROL_FILE = "control"


def control_path(directory: Path) -> Path:
    """Path of the file that switches the mode of all ranks that record to ``directory``.

    One for the whole run where ``commprof run`` made a directory for each world size.
    """
    in_run = directory.name.startswith("world_") and (directory.parent / "run.json").exists()
    return (directory.parent if in_run else directory) / CONTROL_FILE
