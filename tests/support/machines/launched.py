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

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

_START_S = 150  # a slow machine may need so long for two cold starts of torch
#: The shell gets the cgroup's directory as ``$0``.
_IN_CGROUP = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@dataclass
class Launched:
    process: subprocess.Popen[str]
    place: Path

    @property
    def run(self) -> Path:
        return self.place / "run"

    @property
    def world(self) -> Path:
        return self.run / "world_2"

    @property
    def err(self) -> str:
        return (self.place / "err").read_text()

    @property
    def out(self) -> str:
        return (self.place / "out").read_text()

    @property
    def steps_said(self) -> int:
        # The ranks share the file, so a line may begin right after another rank's checksum.
        return len(re.findall(r"(?:^|(?<=[0-9a-f]))step \d+", self.out, re.MULTILINE))

    @property
    def steps_kept(self) -> int:
        return sum(steps_in(path) for path in self.world.glob("rank_*.trace"))

    def await_steps(self) -> None:
        limit = time.monotonic() + _START_S
        paths = [self.world / f"rank_{rank}.trace" for rank in (0, 1)]
        while not all(path.exists() and path.stat().st_size > 8_000 for path in paths):
            assert self.process.poll() is None, self.err
            assert time.monotonic() < limit, "no steps"
            time.sleep(0.05)

    def await_growth(self) -> None:
        paths = [self.world / f"rank_{rank}.trace" for rank in (0, 1)]
        before = [steps_in(path) for path in paths]
        limit = time.monotonic() + 5
        while not all(steps_in(path) > n for path, n in zip(paths, before, strict=True)):
            assert time.monotonic() < limit, f"no step more than {before}"
            time.sleep(0.1)

    def pids(self) -> list[int]:
        return [int(each["pid"]) for each in self._metadata()]

    def rings(self) -> list[str]:
        prefixes = [Path(each["ring_prefix"]) for each in self._metadata()]
        return [path.name for each in prefixes for path in each.parent.glob(f"{each.name}*")]

    def _metadata(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.world.glob("rank_*.trace")):
            with suppress(TraceError, OSError):
                found.append(read_trace(path).metadata)
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in processes_of(self.run):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def launch(command: Sequence[str], place: Path, cgroup: str = "", **environment: str) -> Launched:
    """Starts a command in a process group of its own, as a shell does.

    The command's run directory, if any, must be ``place/run``.
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
    given = what or ("--nproc", "2", str(SCRIPT), *ENDLESS)
    return [sys.executable, *RUN, "--output", str(place / "run"), *given]


def steps_in(path: Path) -> int:
    try:
        return len(columns.steps(read_trace(path)))
    except (OSError, TraceError):
        return 0
