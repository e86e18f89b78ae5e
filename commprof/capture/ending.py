"""What ended a capture: the exception that its trace names."""

from __future__ import annotations

import functools
import sys
import threading
from types import FrameType
from typing import Any, NamedTuple, NoReturn

_MOST_CHARACTERS = 300
#: :func:`error_line` of the exit that was seen on its way.
_exit_line = ""


class _Call(NamedTuple):
    """A call of ``sys.exit``: what it raised, and where the script's outermost frame stood."""

    line: str
    outermost: FrameType
    instruction: int


_last_call: _Call | None = None


def watch_exits() -> None:
    """Notes what ``sys.exit`` is called with, since the interpreter keeps it from exit handlers.

    An exit that the script catches is told from one that ends it by the outermost frame, which
    goes on after the former. Of ``raise SystemExit`` the C++ module notes the exit code later.
    """
    original = sys.exit
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def noted(*status: Any) -> NoReturn:
        try:
            original(*status)
        except SystemExit as error:
            _note_call(error)
            raise

    sys.exit = noted


def _note_call(error: SystemExit) -> None:
    global _last_call
    if threading.current_thread() is not threading.main_thread():
        return  # it ends that thread
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    _last_call = _Call(error_line(error), frame, frame.f_lasti)


def exits(error: SystemExit) -> None:
    """Notes the exception that ends the script, which exit handlers cannot see."""
    global _exit_line
    _exit_line = error_line(error)


def error_line(error: BaseException | None) -> str:
    """Formats an exception in one line, as a traceback ends; empty for none and for a good exit."""
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
    return error_line(sys.exc_info()[1] or printed) or _exit_line or _line_of_last_call()


def _line_of_last_call() -> str:
    if _last_call is None or _last_call.outermost.f_lasti != _last_call.instruction:
        return ""
    return _last_call.line
