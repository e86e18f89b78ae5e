"""Really stops this process for a while (SIGSTOP), by the hand of a child."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from pathlib import Path

from commprof.errors import CommprofError

_SCRIPT = Path(__file__).with_name("stopping_child.py")
_END_S = 5.0


class Stopper:
    """Stops the process that makes it, through a child that ends with that process."""

    def __init__(self) -> None:
        """Raises CommprofError where a process cannot be stopped in this way."""
        # -I -S: no module of the user's, and nothing of commprof's, starts in it.
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.close = weakref.finalize(self, _end, self._child)
        self._await_answer()

    def stop_for(self, duration_ns: int) -> None:
        """Returns when the process has been stopped for that long and goes on.

        Raises:
            CommprofError: the child has ended.
        """
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(b"%d\n" % duration_ns)
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # no answer will come
        self._await_answer()

    def _await_answer(self) -> None:
        assert self._child.stdout is not None
        if not self._child.stdout.readline():
            raise CommprofError(
                f"the child that stops process {os.getpid()} has ended: late_phase=pause takes "
                "Linux 5.3 or later, where pidfd_open is allowed; choose another late_phase"
            )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Its standard input ends, and so does it."""
    child.communicate(timeout=_END_S)
