"""Which mode capture begins in, and how it can be switched while the job runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from commprof.errors import UsageError
from commprof.trace.schema import MODES

#: The mode where ``profile(mode=...)`` names none; "full" without it.
MODE_VARIABLE = "COMMPROF_MODE"
#: The signal that switches to the next mode; "none" for none, SIGUSR2 without it.
SIGNAL_VARIABLE = "COMMPROF_SIGNAL"
CONTROL_FILE = "control"

_DEFAULT_SIGNAL = "SIGUSR2"
_ALLOWED_SIGNALS = ("SIGUSR1", "SIGUSR2", "none")


def mode_code(mode: str | None) -> int:
    """Place in ``schema.MODES`` of ``mode``, or of what the environment names.

    Raises:
        UsageError: no such mode.
    """
    where = "mode" if mode is not None else MODE_VARIABLE
    name = mode if mode is not None else os.environ.get(MODE_VARIABLE) or "full"
    if name not in MODES:
        raise UsageError(
            f"{where}={name!r} is no mode (allowed: {', '.join(MODES)}); take one of these, or "
            "leave it out for full"
        )
    return MODES.index(name)


def switch_signal() -> int:
    """Number of the signal that the environment names; 0 for none.

    Raises:
        UsageError: no such signal, or one that is not free for programs to use.
    """
    name = os.environ.get(SIGNAL_VARIABLE) or _DEFAULT_SIGNAL
    if name not in _ALLOWED_SIGNALS:
        raise UsageError(
            f"{SIGNAL_VARIABLE}={name!r} cannot switch modes (allowed: "
            f"{', '.join(_ALLOWED_SIGNALS)}); take one of these, or unset it for {_DEFAULT_SIGNAL}"
        )
    return 0 if name == "none" else int(signal.Signals[name])


def control_path(directory: Path) -> Path:
    """The file that switches the mode of all ranks that record to ``directory``.

    One for the whole run where ``commprof run`` made a directory for each world size.
    """
    in_run = directory.name.startswith("world_") and (directory.parent / "run.json").exists()
    return (directory.parent if in_run else directory) / CONTROL_FILE
