"""Entry point of the commands, and control over what Ctrl-C does to the process.

Imports no module that takes long to load.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Context in which Ctrl-C kills the process with SIGINT, without a KeyboardInterrupt.

    For use while modules are loaded: some callbacks of imports would swallow a KeyboardInterrupt.
    """
    if not _raises():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_at_once() -> None:
    """Makes Ctrl-C kill the process with SIGINT from now on."""
    if _raises():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore() -> None:
    """Ignores Ctrl-C from now on, for a process that is about to end."""
    if _raises():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _raises() -> bool:
    """True if this is the main thread, and Ctrl-C raises KeyboardInterrupt (Python's default)."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def enter(load: Callable[[], Callable[[], int]]) -> NoReturn:
    """Loads a command, runs it, and ends this process with its exit code.

    A Ctrl-C before the command has loaded, or after it has returned, kills the process with
    SIGINT. While the command runs, Ctrl-C raises KeyboardInterrupt, which the commands handle.

    Args:
        load: imports the command and returns its main function, which returns an exit code.
    """
    with ends_at_once():
        main = load()
    code = main()
    end_at_once()
    sys.exit(code)
