"""A process that records very many steps and is killed, and another that reads what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[3]

_RECORDS = """
import os, signal, sys
import commprof
prof = commprof.profile(sys.argv[1]).start()
for _ in range(int(sys.argv[2])):
    prof.step()
os.kill(os.getpid(), signal.SIGKILL)
"""

_READS = """
import json, resource, sys
from pathlib import Path
from commprof.trace.reader import read_trace
from commprof.trace.rings.salvage import salvage
path = Path(sys.argv[1])
moved = salvage(path)
trace = read_trace(path)
peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([moved, len(trace.records), trace.dropped, peak]))
"""


@dataclass(frozen=True)
class ManyEvents:
    """What became of them."""

    #: Steps that were recorded; a step has a record, and the begin of the first one more.
    steps: int
    recorded_s: float
    read_s: float
    #: Records that were still in shared memory, all that were read, and those counted as dropped.
    salvaged: int
    found: int
    dropped: int
    trace_bytes: int
    #: Most memory that the process had which read them, in RAM at once.
    peak_bytes: int

    @property
    def all_accounted_for(self) -> bool:
        """Whether each record was read or counted as dropped."""
        return self.found + self.dropped == self.steps + 1

    def __str__(self) -> str:
        """In a sentence."""
        return (
            f"{self.steps} steps recorded in {self.recorded_s:.1f} s, killed; {self.salvaged} "
            f"salvaged, {self.found} read in {self.read_s:.1f} s and {self.peak_bytes / 1e6:.0f} "
            f"MB of memory, {self.dropped} counted as dropped, {self.trace_bytes} bytes"
        )


def many_events(steps: int) -> ManyEvents:
    """Records so many, in a process that ends by SIGKILL, and reads them in another one."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with tempfile.TemporaryDirectory() as directory:
        begin = time.monotonic()
        recorder = [sys.executable, "-c", _RECORDS, directory, str(steps)]
        ended = subprocess.run(recorder, env=environment)
        assert ended.returncode == -signal.SIGKILL, ended
        recorded_s = time.monotonic() - begin
        path = Path(directory) / "rank_0.trace"
        begin = time.monotonic()
        reader = [sys.executable, "-c", _READS, str(path)]
        read = subprocess.run(reader, env=environment, stdout=subprocess.PIPE, check=True)
        salvaged, found, dropped, peak = json.loads(read.stdout)
        read_s = time.monotonic() - begin
        size = path.stat().st_size
        return ManyEvents(steps, recorded_s, read_s, salvaged, found, dropped, size, peak)
