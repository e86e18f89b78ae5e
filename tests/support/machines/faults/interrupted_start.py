"""Launches two ranks, and interrupts the launcher while the fork server starts rank NUMBER.

At that moment the rank has begun, but the launcher does not know its process ID yet.
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
    time.sleep(600)


def main(directory: str, number: str) -> None:
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
    # The ranks unpickle ``wait`` from this module, not from __main__.
    from tests.support.machines.faults import interrupted_start

    interrupted_start.main(*sys.argv[1:])
