"""What the system says of a rank's process, from /proc."""

from __future__ import annotations

from commprof.monitor.watchdog.hang import DEAD, Process
from commprof.trace.run.processes import PROC, stat_of, text_of

#: Looks in a row that must find a process asleep in the kernel: each page fault is such a sleep.
_LOOKS = 4
_SENTENCES = {
    "stopped": "is stopped (SIGSTOP or a job control signal); kill -CONT {pid} lets it go on",
    "traced": "is held by a debugger, process {tracer}",
    "uninterruptible": "sleeps in the kernel (state D{where}): a disk, network file system or "
    "driver does not answer",
    DEAD: "is dead: process {pid} is gone",
}
_CODES = {"T": "stopped", "t": "traced", "D": "uninterruptible", "Z": DEAD, "X": DEAD}


class ProcessWatch:
    """One process, looked at again and again. A later one of the same id is not taken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = _stat(pid)[1]
        self._asleep = 0

    def look(self) -> Process:
        """Its state by now."""
        code, started = _stat(self.pid)
        if not code or started != self._started:
            code = "X"
        state = _CODES.get(code, "running")
        self._asleep = self._asleep + 1 if state == "uninterruptible" else 0
        if state == "uninterruptible" and self._asleep < _LOOKS:
            state = "running"
        sentence = _SENTENCES.get(state, "")
        return Process(
            self.pid,
            state,
            sentence.format(pid=self.pid, tracer=_tracer(self.pid), where=_kernel_place(self.pid)),
        )


def _stat(pid: int) -> tuple[str, int]:
    """State code and start time; ("", 0) of a process that is gone."""
    try:
        found = stat_of(pid)
    except OSError:
        return "", 0
    return ("", 0) if found is None else (found.code, found.start_ticks)


def _tracer(pid: int) -> str:
    lines = text_of(PROC / str(pid) / "status").splitlines()
    return next((line.split()[1] for line in lines if line.startswith("TracerPid:")), "unknown")


def _kernel_place(pid: int) -> str:
    place = text_of(PROC / str(pid) / "wchan").split("\n", 1)[0]
    return f" in {place}" if place not in ("", "0") else ""
