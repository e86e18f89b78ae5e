"""Opens a command for whoever types it. Imports nothing that takes time: see :func:`enter`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from commprof.interrupts import end_at_once, ends_at_once


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
