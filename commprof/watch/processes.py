"""What the system says of a rank's process, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

from commprof.live.hang import DEAD, Process

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


def is_here(machine: dict[str, str]) -> bool:
    """Whether a trace's process shares this one's boot, and PID and time namespaces."""
    here = _first_line("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid")
    clock = _link("/proc/self/ns/time")
    there = machine.get("boot_id"), machine.get("pid_namespace")
    return bool(here[0]) and there == here and machine.get("time_namespace") == clock


def _stat(pid: int) -> tuple[str, int]:
    """State code and start time; ("", 0) of a process that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0


def _tracer(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split()[1] for line in lines if line.startswith("TracerPid:")), "unknown")


def _kernel_place(pid: int) -> str:
    place = _first_line(f"/proc/{pid}/wchan")
    return f" in {place}" if place not in ("", "0") else ""


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().split("\n", 1)[0]
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
