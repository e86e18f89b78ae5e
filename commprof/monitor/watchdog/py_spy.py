"""Stacks of a process, and samples of them, by py-spy, which reads them from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from commprof import invocation

#: Then it is ended: a process that does not answer must not keep the watchdog.
_TIMEOUT_S = 4.0
_NATIVE_TIMEOUT_S = 15.0
#: Samples a second.
RATE = 100
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")

MISSING = (
    f"py-spy is not installed where commprof is: {invocation.pip('py-spy')} for stacks of ranks "
    "that hang"
)


@dataclass(frozen=True)
class Dump:
    """Python stacks of all threads of a process, or why there are none."""

    #: As py-spy prints them; empty without any.
    text: str
    #: In a sentence, with what to do; empty where there are stacks.
    problem: str


def find_py_spy() -> str | None:
    """Finds the py-spy program, beside this Python or on the PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def dump(pid: int) -> Dump:
    """Reads the Python stacks of a process as they are now.

    py-spy only reads its memory and does not stop it, so it may be stopped already.
    """
    program = find_py_spy()
    if program is None:
        return Dump("", MISSING)
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid), "--nonblocking"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Dump("", f"py-spy gave no answer within {_TIMEOUT_S:g} s")
    except OSError as error:
        return Dump("", f"{program} cannot be run: {error.strerror}")
    if done.returncode == 0 and done.stdout.strip():
        return Dump(done.stdout, "")
    return Dump("", explained(done.stderr, pid))


class NativeDump:
    """A dump with C and C++ frames, which takes py-spy seconds and is not waited for.

    py-spy stops the process for them, so this is for ranks that stand still as it is.
    """

    def __init__(self, pid: int) -> None:
        """pid: of a Python process that is not stopped."""
        self._pid = pid
        self._end = time.monotonic() + _NATIVE_TIMEOUT_S
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (see close)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [find_py_spy() or "py-spy", "dump", "--pid", str(pid), "--native"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
        )

    def poll(self) -> Dump | None:
        """Returns the stacks once they are there; None until then."""
        if self._process.poll() is None:
            if time.monotonic() < self._end:
                return None
            self.close()
            return Dump("", f"py-spy gave no native stacks within {_NATIVE_TIMEOUT_S:g} s")
        self._output.seek(0)
        self._errors.seek(0)
        text = self._output.read().decode(errors="replace")
        error = self._errors.read().decode(errors="replace")
        good = self._process.returncode == 0 and bool(text.strip())
        self.close()
        return Dump(text, "") if good else Dump("", explained(error, self._pid))

    def close(self) -> None:
        """Ends py-spy; the process that it reads goes on."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._errors.close()


class Sampler:
    """Samples of a process's stacks, which py-spy takes until either ends and then writes.

    It only reads the process's memory and does not stop it: now and then a stack changes meanwhile,
    and the sample is lost or wrong.
    """

    def __init__(self, pid: int, path: Path) -> None:
        """path: gets the stacks of all threads, idle ones too, each with its number of samples."""
        self._pid = pid
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (see end)
        options = ("--threads", "--idle", "--nonblocking", "--format", "raw", "--rate", str(RATE))
        self._process = subprocess.Popen(
            [find_py_spy() or "py-spy", "record", *options, "--pid", str(pid), "--output", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )

    def stop(self) -> None:
        """Lets it write what it has; see ``end``."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def end(self) -> str:
        """Ends the sampling; returns why there are no samples, or an empty text."""
        try:
            code = self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        error = self._errors.read().decode(errors="replace")
        self._errors.close()
        return explained(error, self._pid) if code else ""


def explained(error: str, pid: int) -> str:
    """Explains an error of py-spy in a sentence that tells what to do."""
    if "ermission" in error or "not permitted" in error:
        return f"reading process {pid} is not allowed (ptrace): {_permission()}"
    lines = [line for line in error.splitlines() if line.strip()]
    return f"py-spy: {lines[0] if lines else 'it failed and said nothing'}"


def _permission() -> str:
    try:
        scope = _YAMA.read_text().strip()
    except OSError:
        scope = "0"
    if scope == "1":
        return (
            "kernel.yama.ptrace_scope is 1; start the job with commprof run, whose ranks allow it, "
            "or sysctl kernel.yama.ptrace_scope=0"
        )
    if scope in ("2", "3"):
        return f"kernel.yama.ptrace_scope is {scope}; only root may, or nobody until it is lowered"
    return (
        "run the job as the same user and without more capabilities than the launcher; in a "
        "container add CAP_SYS_PTRACE"
    )
