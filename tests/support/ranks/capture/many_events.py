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

_ROOT = Path(__file__).parents[4]

_RECORDS = """
import os, signal, sys, time
import commprof
prof = commprof.profile(sys.argv[1]).start()
for _ in range(int(sys.argv[2])):
    prof.step()
if sys.argv[3] == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)  # for the threads that see stops
os.kill(os.getpid(), signal.SIGKILL)
"""

#: A stop is much longer than the shortest pause that capture records.
_STOPPED_S = 0.1

_READS = """
import json, resource, sys
from pathlib import Path
from commprof.trace.reader import read_trace
from commprof.trace.reader import salvage
from commprof.trace.schema import Kind
path = Path(sys.argv[1])
moved = salvage(path)
trace = read_trace(path)
peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pauses = int((trace.records["kind"] == Kind.PAUSE).sum())
print(json.dumps([moved, len(trace.records), pauses, trace.dropped, peak]))
"""


@dataclass(frozen=True)
class ManyEvents:
    #: Each step has one record, and the first step's begin has one more record.
    steps: int
    recorded_s: float
    read_s: float
    #: Salvaged records were still in shared memory; found records are all that were read.
    salvaged: int
    found: int
    pauses: int
    dropped: int
    trace_bytes: int
    peak_bytes: int

    @property
    def all_accounted_for(self) -> bool:
        return self.found - self.pauses + self.dropped == self.steps + 1

    def __str__(self) -> str:
        return (
            f"{self.steps} steps recorded in {self.recorded_s:.1f} s, killed; {self.salvaged} "
            f"salvaged, {self.found} read in {self.read_s:.1f} s and {self.peak_bytes / 1e6:.0f} "
            f"MB of memory, {self.dropped} counted as dropped, {self.trace_bytes} bytes"
        )


def many_events(steps: int, stops: bool = False) -> ManyEvents:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with tempfile.TemporaryDirectory() as directory:
        begin = time.monotonic()
        ending = "stops" if stops else "goes on"
        recorder = [sys.executable, "-c", _RECORDS, directory, str(steps), ending]
        with subprocess.Popen(recorder, env=environment) as process:
            if stops:
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status), status
                time.sleep(_STOPPED_S)
                process.send_signal(signal.SIGCONT)
        assert process.returncode == -signal.SIGKILL, process.returncode
        recorded_s = time.monotonic() - begin
        path = Path(directory) / "rank_0.trace"
        begin = time.monotonic()
        reader = [sys.executable, "-c", _READS, str(path)]
        read = subprocess.run(reader, env=environment, stdout=subprocess.PIPE, check=True)
        salvaged, found, pauses, dropped, peak = json.loads(read.stdout)
        read_s = time.monotonic() - begin
        size = path.stat().st_size
        return ManyEvents(steps, recorded_s, read_s, salvaged, found, pauses, dropped, size, peak)
