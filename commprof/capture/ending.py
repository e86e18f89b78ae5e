"""What ended a capture: the exception that its trace names."""

from __future__ import annotations

import sys

_MOST_CHARACTERS = 300
#: :func:`error_line` of the exit that was seen on its way.
_exit_line = ""


def exits(error: SystemExit) -> None:
    """Takes what ends the script; the interpreter keeps it from exit handlers."""
    global _exit_line
    _exit_line = error_line(error)


def error_line(error: BaseException | None) -> str:
    """An exception in a line, as a traceback ends; empty for none and for a good exit."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return ""
        # torch's mp.spawn prints an exception itself and exits with 1.
        cause = error.__context__
        if cause is not None and not isinstance(cause, SystemExit):
            return error_line(cause)
    if error is None:
        return ""
    lines = str(error).strip().splitlines()
    return f"{type(error).__qualname__}: {lines[0] if lines else ''}"[:_MOST_CHARACTERS]


def unhandled() -> str:
    """:func:`error_line` of what ends this process, where exit handlers ask; or empty."""
    # In a child of multiprocessing they run while the exception is on its way; elsewhere the
    # interpreter has printed it and left it here.
    printed = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    return error_line(sys.exc_info()[1] or printed) or _exit_line
