"""Program that stops its parent process, once per line of standard input.

Each line holds the length of the stop in ns. The program ends when its parent ends. It imports only
the standard library, so that it starts quickly.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def main() -> None:
    """Stops and resumes the parent once for each line read.

    Writes an empty line to standard output when ready, and after each stop.
    """
    # Such a signal must not end this program while the parent is stopped.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    parent = os.pidfd_open(int(sys.argv[1]))
    if os.getppid() != int(sys.argv[1]):
        return  # the parent has ended, and another process may have its id
    _answer()
    for line in sys.stdin.buffer:
        _stop(parent, int(line))
        _answer()


def _stop(process: int, duration_ns: int) -> None:
    try:
        signal.pidfd_send_signal(process, signal.SIGSTOP)
        select.select([process], [], [], duration_ns / 1e9)  # or until the process is killed
    finally:
        signal.pidfd_send_signal(process, signal.SIGCONT)


def _answer() -> None:
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
