"""When Ctrl-C ends a process at once, not by a KeyboardInterrupt; and how commands are entered.

Imports nothing that takes time.
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
    """Within this context Ctrl-C ends the process by the signal, not by a KeyboardInterrupt.

    For loading modules, which takes seconds where torch is one of them: there is nothing to clean
    up yet, and an exception may come where nobody lets it through, in a callback of Python's own
    import machinery or of a C module.
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
    """Lets Ctrl-C end the process by the signal from now on; nothing is left to clean up."""
    if _raises():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _raises() -> bool:
    """Whether it is neither ignored, as under nohup, nor somebody else's."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def enter(load: Callable[[], Callable[[], int]]) -> NoReturn:
    """Loads a command, runs it, and ends this process with its exit code.

    A Ctrl-C before the command has loaded, and when it is done, ends the process as it would end
    a program that knows nothing of it. In between it is a KeyboardInterrupt, which commands know.

    Args:
        load: imports the command; returns its main function, which returns an exit code.
    """
    with ends_at_once():
        main = load()
    code = main()
    end_at_once()
    sys.exit(code)
