"""Runs a command whose CLOCK_MONOTONIC is MS milliseconds ahead: the arguments are MS COMMAND...

The command gets its own Linux time namespace, which needs root.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_CLONE_NEWTIME = 0x80
_PR_SET_PDEATHSIG = 1
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


def main() -> None:
    shift_ns = round(float(sys.argv[1]) * _NS_PER_MS)
    libc = ctypes.CDLL(None, use_errno=True)
    # The new namespace will hold this process's children, but not this process.
    if libc.unshare(_CLONE_NEWTIME) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWTIME)")
    seconds, rest_ns = divmod(shift_ns, _NS_PER_S)
    Path("/proc/self/timens_offsets").write_text(f"monotonic {seconds} {rest_ns}\n")
    pid = os.fork()
    if pid == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(sys.argv[2], sys.argv[2:])
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
