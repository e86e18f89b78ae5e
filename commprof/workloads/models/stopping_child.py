"""Stops its parent for each number of nanoseconds that it reads, and ends with it.

Run as a script by its path: it takes the standard library alone, and is there in a moment.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def main() -> None:
    """Answers each line once the parent goes on, and says first that it is there."""
    # It ends when its parent does, and never between a stop and what follows it.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    parent = os.pidfd_open(int(sys.argv[1]))
    if os.getppid() != int(sys.argv[1]):
        return  # the parent has ended, and this may be somebody else's number
    _answer()
    for line in sys.stdin.buffer:
        _stop(parent, int(line))
        _answer()


def _stop(process: int, duration_ns: int) -> None:
    try:
        signal.pidfd_send_signal(process, signal.SIGSTOP)
        select.select([process], [], [], duration_ns / 1e9)  # or until it is killed
    finally:
        signal.pidfd_send_signal(process, signal.SIGCONT)


def _answer() -> None:
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
