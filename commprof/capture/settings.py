"""What a rank is told by its environment: read, checked and written in one place."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from commprof import variables
from commprof.errors import UsageError
from commprof.trace.schema import MODES

_MODE = "full"
_SIGNALS = ("SIGUSR1", "SIGUSR2", "none")
_CLOCKS = ("auto", "always", "off")
_NAMES = (
    *(variables.MODE, variables.SIGNAL, variables.STACKS, variables.CLOCK),
    *(variables.GRADIENT_NORMS, variables.CHECK_SYNC, variables.BUCKET_CAP_MB),
)
#: Read by the recorder or the package itself, with a fixed set of values.
_CHOICES = {variables.DEVICE_EVENTS: ("on", "off"), variables.NATIVE: ("0", "1")}


@dataclass(frozen=True)
class RankSettings:
    """What the environment asks of a rank that records, with defaults where it is silent."""

    #: Mode that recording begins in, one of ``schema.MODES``.
    mode: str = _MODE
    #: Name of the signal that switches modes, or "none".
    switch_signal: str = "SIGUSR2"
    #: True if the Python frames that issue each collective are recorded.
    stacks: bool = False
    #: ``auto`` compares clocks that are not the same one, ``always`` all, ``off`` none.
    clock: str = "auto"
    #: Steps between two measurements of the gradients' norms; 0 measures none.
    gradient_norms_every: int = 0
    #: Steps between two comparisons of all ranks' models; 0 compares none.
    check_sync_every: int = 0
    #: DDP's ``bucket_cap_mb`` in MiB for models that name none; None leaves DDP's own.
    bucket_cap_mb: float | None = None
    #: Process whose descendants may read the stacks of this one; None if nobody else may. The
    #: launcher sets it beside the other settings, for its own watchdog.
    tracer: int | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> RankSettings:
        """Reads the settings from variables, those of this process if None are given.

        Raises:
            UsageError: a variable has a value that means nothing; it is named with what is allowed.
        """
        found = os.environ if environment is None else environment
        for name, allowed in _CHOICES.items():
            _choice(found, name, allowed, "")
        cap = found.get(variables.BUCKET_CAP_MB, "")
        return cls(
            mode=_choice(found, variables.MODE, MODES, _MODE),
            switch_signal=_choice(found, variables.SIGNAL, _SIGNALS, "SIGUSR2"),
            stacks=_choice(found, variables.STACKS, ("0", "1"), "0") == "1",
            clock=_choice(found, variables.CLOCK, _CLOCKS, "auto"),
            gradient_norms_every=_steps(found, variables.GRADIENT_NORMS, 0),
            check_sync_every=_steps(found, variables.CHECK_SYNC, 1),
            bucket_cap_mb=_mebibytes(cap) if cap else None,
            tracer=_process(found, variables.PTRACER),
        )

    @property
    def switch_signal_number(self) -> int:
        """Number of the signal that switches modes; 0 for none."""
        return 0 if self.switch_signal == "none" else int(signal.Signals[self.switch_signal])

    def variables(self) -> dict[str, str]:
        """Returns the variables, but for defaults and the tracer, that ``read`` makes these of."""
        texts = {
            variables.MODE: (self.mode, _MODE),
            variables.SIGNAL: (self.switch_signal, "SIGUSR2"),
            variables.STACKS: (str(int(self.stacks)), "0"),
            variables.CLOCK: (self.clock, "auto"),
            variables.GRADIENT_NORMS: (str(self.gradient_norms_every), "0"),
            variables.CHECK_SYNC: (str(self.check_sync_every), "0"),
            variables.BUCKET_CAP_MB: (
                "" if self.bucket_cap_mb is None else f"{self.bucket_cap_mb:g}",
                "",
            ),
        }
        return {name: text for name, (text, default) in texts.items() if text != default}

    def leave_for_ranks(self) -> None:
        """Puts the settings into this process's environment, which the ranks inherit."""
        for name in _NAMES:
            os.environ.pop(name, None)
        os.environ.update(self.variables())


def mode_code(mode: str | None) -> int:
    """Returns the place in ``schema.MODES`` of ``mode``, or of the environment's for None.

    Raises:
        UsageError: no such mode.
    """
    if mode is None:
        mode = RankSettings.read().mode
    return MODES.index(_choice({"mode": mode}, "mode", MODES, ""))


def check_kernels() -> None:
    """Refuses what the kernels would refuse in the midst of training.

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


def _choice(found: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = found.get(name) or default
    if value and value not in allowed:
        raise UsageError(
            f"{name}={value!r} means nothing (allowed: {', '.join(allowed)}); take one of these, "
            "or leave it out"
        )
    return value


def _steps(found: Mapping[str, str], name: str, least: int) -> int:
    text = found.get(name) or ""
    if not text:
        return 0
    number = _whole(text)
    if number is None or number < least:
        allowed = "0 for never, or more" if least == 0 else "1 or more"
        raise UsageError(
            f"{name}={text!r} is no number of steps (allowed: {allowed}); give every how many "
            "steps it is done, or leave it out"
        )
    return number


def _process(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name) or ""
    if not text:
        return None
    number = _whole(text)
    if number is None or not 0 < number < 2**31:
        raise UsageError(
            f"{name}={text!r} is no process (allowed: a process ID above 0); give the ID of the "
            "one whose descendants may read the ranks' stacks, or leave it out"
        )
    return number


def _whole(text: str) -> int | None:
    """None for what is no whole number, or more than Python reads."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _mebibytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(
            f"{variables.BUCKET_CAP_MB}={text!r} is out of range (allowed: MiB above 0); give "
            "such a number, or leave it out"
        )
    return value
