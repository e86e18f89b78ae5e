"""A process that has itself stopped: it is, and nothing of it stays behind.

Never the one that runs the tests: a shell would take it for stopped by its user.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_SCRIPT = "from commprof.workloads.stopper import Stopper\nStopper().stop_for({})"
_WITHIN_S = 60.0


def stopped_process(duration_ns: int) -> int:
    """A process that is stopped now; to be waited for."""
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT.format(duration_ns)])
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    process.returncode = 0  # it is waited for by number
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGSTOP
    return process.pid


def test_the_process_is_stopped_and_goes_on() -> None:
    pid = stopped_process(20_000_000)
    _, status = os.waitpid(pid, os.WCONTINUED)
    assert os.WIFCONTINUED(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_child_ends_with_a_process_that_is_killed_while_stopped() -> None:
    pid = stopped_process(3600 * 10**9)
    (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    await_end(child)


def await_end(pid: int) -> None:
    """Fails where it does not come."""
    end = time.monotonic() + _WITHIN_S
    while runs(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Also false for one that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


_KILLED = """
import os, signal
from commprof.workloads.stopper import Stopper
stopper = Stopper()
stopper.stop_for(1_000_000)
print("went on", flush=True)
(child,) = open(f"/proc/self/task/{os.getpid()}/children").read().split()
os.kill(int(child), signal.SIGKILL)
os.waitid(os.P_PID, int(child), os.WEXITED | os.WNOWAIT)
stopper.stop_for(1_000_000)
"""


def test_a_child_that_was_killed_is_said() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "went on\n")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("commprof.errors.CommprofError: the child that stops process ")
    assert last.endswith("choose another late_phase")
