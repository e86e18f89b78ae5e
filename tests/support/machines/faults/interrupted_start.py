"""A launcher that Ctrl-C interrupts while the fork server starts a rank: ``... DIRECTORY NUMBER``.

The signal comes when the rank of that number has begun, and before its process ID is known.
"""

from __future__ import annotations

import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException

from commprof.launch.elastic import launch_function


def wait(_: str) -> None:
    """Entry point of every rank, which only waits."""
    time.sleep(600)


def main(directory: str, number: str) -> None:
    """Launches two ranks; raises KeyboardInterrupt."""
    read_signed, asked = forkserver.read_signed, []
    output = Path(directory) / f"rank_{number}.out"

    def interrupted(fd: int) -> int:
        asked.append(fd)
        if len(asked) == 1 + int(number):
            while not output.exists():
                time.sleep(0.01)
            raise SignalException("interrupted", signal.SIGINT)
        answer: int = read_signed(fd)
        return answer

    forkserver.read_signed = interrupted
    launch_function(wait, [""], 2, Path(directory))


if __name__ == "__main__":
    from tests.support.machines.faults import interrupted_start  # as the ranks import it

    interrupted_start.main(*sys.argv[1:])
