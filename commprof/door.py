"""Opens a command for whoever types it. Imports nothing that takes time: see :func:`enter`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def enter(load: Callable[[], Callable[[], int]]) -> NoReturn:
    """Loads a command, runs it, and ends this process with its exit code.

    While modules load there is nothing to clean up, and when the command is done nothing to
    interrupt: a Ctrl-C then ends the process at once, by the signal, as it would end a program
    that knows nothing of it. In between it is a KeyboardInterrupt, which commands know.

    Args:
        load: imports the command; returns its main function, which returns an exit code.
    """
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if catches:  # and is not ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    main = load()
    if catches:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = main()
    if catches:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
