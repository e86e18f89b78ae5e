"""Jobs under a launcher, as users start them, and their files and processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commprof.errors import TraceError
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.machines.commands import RUN
from tests.support.machines.faults.faults import SCRIPT
from tests.support.machines.processes import processes_of

ENDLESS = ("none", "1000000")
"""Arguments of ``scripts/faulty.py`` for a job that does not end by itself."""

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

_START_S = 150  # two cold starts of torch, even on a slow machine
#: Shell script that joins a cgroup, then executes the command.
_IN_CGROUP = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@dataclass
class Launched:
    """A launcher and its ranks. Their output goes into files, because pipes would not be read."""

    process: subprocess.Popen[str]
    #: Directory with ``out``, ``err`` and the run directory.
    place: Path

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.place / "run"

    @property
    def world(self) -> Path:
        """Directory in which the two ranks record."""
        return self.run / "world_2"

    @property
    def err(self) -> str:
        """Output on stderr."""
        return (self.place / "err").read_text()

    @property
    def out(self) -> str:
        """Output on stdout."""
        return (self.place / "out").read_text()

    @property
    def steps_said(self) -> int:
        """Number of steps that both ranks printed; their lines may be mixed in the shared file."""
        return len(re.findall(r"(?:^|(?<=[0-9a-f]))step \d+", self.out, re.MULTILINE))

    @property
    def steps_kept(self) -> int:
        """Number of steps in both traces."""
        return sum(steps_in(path) for path in self.world.glob("rank_*.trace"))

    def await_steps(self) -> None:
        """Waits until both ranks record steps."""
        limit = time.monotonic() + _START_S
        paths = [self.world / f"rank_{rank}.trace" for rank in (0, 1)]
        while not all(path.exists() and path.stat().st_size > 8_000 for path in paths):
            assert self.process.poll() is None, self.err
            assert time.monotonic() < limit, "no steps"
            time.sleep(0.05)

    def await_growth(self) -> None:
        """Waits up to 5 s until both ranks have recorded more steps."""
        paths = [self.world / f"rank_{rank}.trace" for rank in (0, 1)]
        before = [steps_in(path) for path in paths]
        limit = time.monotonic() + 5
        while not all(steps_in(path) > n for path, n in zip(paths, before, strict=True)):
            assert time.monotonic() < limit, f"no step more than {before}"
            time.sleep(0.1)

    def pids(self) -> list[int]:
        """Process IDs of the ranks that have begun to record."""
        return [int(each["pid"]) for each in self._metadata()]

    def rings(self) -> list[str]:
        """Files that these ranks still have in shared memory, not those of an older process."""
        prefixes = [Path(each["ring_prefix"]) for each in self._metadata()]
        return [path.name for each in prefixes for path in each.parent.glob(f"{each.name}*")]

    def _metadata(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.world.glob("rank_*.trace")):
            with suppress(TraceError, OSError):
                found.append(read_trace(path).metadata)
        return found

    def end(self) -> None:
        """Kills the processes that are left."""
        self.process.kill()
        self.process.wait()
        for pid in processes_of(self.run):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def launch(command: Sequence[str], place: Path, cgroup: str = "", **environment: str) -> Launched:
    """Starts a command in its own process group, as a shell does.

    Args:
        command: the command; its run directory, if any, must be ``place/run``.
        place: a directory, created if necessary.
        cgroup: directory of a cgroup to run in; empty for no cgroup.
        environment: variables in addition to this process's own.
    """
    place.mkdir(parents=True, exist_ok=True)
    joined = ["sh", "-c", _IN_CGROUP, cgroup, *command] if cgroup else list(command)
    with (place / "out").open("w") as out, (place / "err").open("w") as err:
        process = subprocess.Popen(
            joined,
            env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )
    return Launched(process, place)


def run_of(place: Path, *what: str) -> list[str]:
    """Returns ``commprof run`` into ``place/run``; by default, two ranks of an endless script."""
    given = what or ("--nproc", "2", str(SCRIPT), *ENDLESS)
    return [sys.executable, *RUN, "--output", str(place / "run"), *given]


def steps_in(path: Path) -> int:
    """Returns the number of steps in a trace; 0 if the trace does not exist yet."""
    try:
        return len(columns.steps(read_trace(path)))
    except (OSError, TraceError):
        return 0
