"""Finds the exception that ended a capture, for the trace's metadata."""

from __future__ import annotations

import functools
import sys
import threading
from types import FrameType
from typing import Any, NamedTuple, NoReturn

_MOST_CHARACTERS = 300
#: Error line of the exception that was passed to :func:`exits`.
_exit_line = ""


class _Call(NamedTuple):
    """A call of ``sys.exit`` in the main thread.

    ``line`` is the error line of the SystemExit. ``outermost`` is the outermost frame of the stack,
    and ``instruction`` is the frame's position in its bytecode during the call.
    """

    line: str
    outermost: FrameType
    instruction: int


_last_call: _Call | None = None


def watch_exits() -> None:
    """Wraps ``sys.exit`` to record its argument, which exit handlers cannot see.

    ``raise SystemExit`` is not recorded here: the native module writes the exit code to the trace
    when the process ends.
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
        return  # sys.exit ends only this thread, not the process
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    _last_call = _Call(error_line(error), frame, frame.f_lasti)


def exits(error: SystemExit) -> None:
    """Stores the error line of the SystemExit that ends the script."""
    global _exit_line
    _exit_line = error_line(error)


def error_line(error: BaseException | None) -> str:
    """Returns an exception's type and first line of text; empty for None and for exit code 0."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return ""
        # torch's mp.spawn prints an exception and then calls sys.exit(1). The exception is the
        # context of the SystemExit.
        cause = error.__context__
        if cause is not None and not isinstance(cause, SystemExit):
            return error_line(cause)
    if error is None:
        return ""
    lines = str(error).strip().splitlines()
    return f"{type(error).__qualname__}: {lines[0] if lines else ''}"[:_MOST_CHARACTERS]


def unhandled() -> str:
    """Returns the error line of the exception that ends this process; empty if there is none.

    Call it in an exit handler.
    """
    # In a child process of multiprocessing, exit handlers run while the exception propagates. In
    # other processes the interpreter has printed the exception and stored it in sys.last_value.
    printed = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    return error_line(sys.exc_info()[1] or printed) or _exit_line or _line_of_last_call()


def _line_of_last_call() -> str:
    # If the frame is at another instruction, the script has caught the exit and continued.
    if _last_call is None or _last_call.outermost.f_lasti != _last_call.instruction:
        return ""
    return _last_call.line
