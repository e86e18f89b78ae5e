"""Runs py-spy, which reads the stacks of another process once or regularly."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commprof import invocation
from commprof.analysis.collectives.issuing_lines import lines_of_parts
from commprof.text import CALLED_AT

#: Time limit for py-spy, so that the watchdog is not blocked.
_TIMEOUT_S = 4.0
_NATIVE_TIMEOUT_S = 15.0
#: Samples per second.
RATE = 100
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")

MISSING = (
    "py-spy, which reads the ranks' stacks, is not installed next to commprof; install it: "
    f"{invocation.pip('py-spy')}"
)


@dataclass(frozen=True)
class StackDump:
    """Python stacks of all threads of a process, or the reason why there are none."""

    #: Stacks as py-spy prints them; empty if there are none.
    text: str
    #: Why there are no stacks, as a sentence; empty if there are stacks.
    problem: str


def find_py_spy() -> str | None:
    """Finds the py-spy program, next to this Python or on the PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def dump(pid: int) -> StackDump:
    """Reads the current Python stacks of a process.

    A stopped process can be read too.
    """
    program = find_py_spy()
    if program is None:
        return StackDump("", MISSING)
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
        return StackDump("", f"py-spy gave no answer within {_TIMEOUT_S:g} s")
    except OSError as error:
        return StackDump("", f"{program} cannot be run: {error.strerror}")
    if done.returncode == 0 and done.stdout.strip():
        return StackDump(done.stdout, "")
    return StackDump("", explained(done.stderr, pid))


#: A frame as py-spy prints it: "    all_gather (torch/distributed/distributed_c10d.py:3853)".
_FRAME = re.compile(r"^ {4}(?P<function>.*) \((?P<file>[^()]+):(?P<line>\d+)\)$")
#: Files of libraries. py-spy prints only the part of a path after ``site-packages/``.
_OF_LIBRARY = re.compile(r"^(?:torch|commprof|<)|/(?:site|dist)-packages/")


#: Functions that make a process group and wait for other ranks. The values say which ranks must
#: call the function.
MAKE_GROUPS: Final = {
    "new_group": (
        "all ranks must call new_group in the same order, or, with use_local_synchronization, all "
        "ranks of the new group"
    ),
    "split_group": "all ranks of the parent group must call split_group in the same order",
}
_MAKES_GROUP = re.compile(
    rf"^ {{4}}({'|'.join(MAKE_GROUPS)}) \(torch/distributed/distributed_c10d\.py:\d+\)$",
    re.MULTILINE,
)
#: The function in which Python waits for its other threads after the end of the script.
_AFTER_SCRIPT = re.compile(r"^ {4}_shutdown \(threading\.py:\d+\)$", re.MULTILINE)


def script_places(stacks: Mapping[int, str]) -> dict[int, str]:
    """Returns, for each rank, text on the script's current line: "now at train.py:7".

    If the line is not known, the text says that the rank left its script, or is empty. ``stacks``
    holds the text of each rank's ``StackDump``.
    """
    paths = {rank: path for rank, text in stacks.items() if (path := script_path(text))}
    lines = dict(lines_of_parts(paths, [[rank] for rank in paths]))
    return {
        rank: f"now at {lines[rank]}{_makes_group(text)}" if rank in lines else _left_script(text)
        for rank, text in stacks.items()
    }


def _makes_group(stacks: str) -> str:
    """Returns text such as ", in new_group" if the rank is making a group; else empty."""
    made = _MAKES_GROUP.search(_main_thread(stacks))
    return f", in {made[1]}" if made else ""


def _left_script(stacks: str) -> str:
    if _AFTER_SCRIPT.search(_main_thread(stacks)):
        return "left its script, by an exception or at its end"
    return ""


def _main_thread(stacks: str) -> str:
    _, _, main = stacks.partition("MainThread")
    return main.partition("\nThread ")[0]


def script_path(stacks: str) -> str:
    """Returns the main thread's lines outside of torch, Python and commprof, innermost first.

    The result is text such as "helper.py:3 < train.py:7"; empty without such lines. ``stacks`` is
    the text of a ``StackDump``.
    """
    matched = map(_FRAME.match, _main_thread(stacks).splitlines()[1:])
    frames = [m for m in matched if m is not None and not _OF_LIBRARY.search(m["file"])]
    # The script itself may have the name of one of Python's modules.
    scripts = [m["file"] for m in frames if m["function"] == "<module>"][-1:]
    return CALLED_AT.join(
        f"{os.path.basename(m['file'])}:{m['line']}"
        for m in frames
        if m["file"] in scripts or not _is_of_python(m["file"])
    )


def _is_of_python(file: str) -> bool:
    """True for a file of Python's own modules: "queue.py", "importlib/__init__.py"."""
    return not os.path.isabs(file) and os.path.exists(
        os.path.join(os.path.dirname(os.__file__), file)
    )


class NativeDump:
    """Reads stacks with C and C++ frames in the background.

    py-spy stops the process for some seconds, so only ranks that hang are read.
    """

    def __init__(self, pid: int) -> None:
        """Starts py-spy for a Python process. The process must not be stopped."""
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

    def poll(self) -> StackDump | None:
        """Returns the stacks, or the reason why there are none; None while py-spy runs."""
        if self._process.poll() is None:
            if time.monotonic() < self._end:
                return None
            self.close()
            return StackDump("", f"py-spy gave no native stacks within {_NATIVE_TIMEOUT_S:g} s")
        self._output.seek(0)
        self._errors.seek(0)
        text = self._output.read().decode(errors="replace")
        error = self._errors.read().decode(errors="replace")
        good = self._process.returncode == 0 and bool(text.strip())
        self.close()
        return StackDump(text, "") if good else StackDump("", explained(error, self._pid))

    def close(self) -> None:
        """Ends py-spy. The examined process continues."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._errors.close()


class Sampler:
    """Samples a process's stacks with py-spy, which writes a file when it ends.

    The process is not stopped. If a stack changes during a reading, the sample is lost or wrong.
    """

    def __init__(self, pid: int, path: Path) -> None:
        """Starts py-spy, which samples all threads and writes to ``path``.

        Each line of the file holds a stack and the number of its samples.
        """
        self._pid = pid
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (see end)
        options = ("--threads", "--idle", "--nonblocking", "--format", "raw", "--rate", str(RATE))
        command = [find_py_spy() or "py-spy", "record", *options, "--pid", str(pid)]
        try:
            self._process = subprocess.Popen(
                [*command, "--output", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
            )
        except OSError:
            self._errors.close()
            raise

    def stop(self) -> None:
        """Tells py-spy to stop sampling and to write its file."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def end(self) -> str:
        """Waits for py-spy to end; returns why there are no samples, or an empty text."""
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
    """Returns a sentence about an error of py-spy, with a remedy if one is known."""
    if "ermission" in error or "not permitted" in error:
        return f"reading process {pid} is not allowed (ptrace): {_permission()}"
    lines = [line for line in error.splitlines() if line.strip()]
    return f"py-spy: {lines[0] if lines else 'it failed without a message'}"


def _permission() -> str:
    try:
        scope = _YAMA.read_text().strip()
    except OSError:
        scope = "0"
    if scope == "1":
        return (
            "kernel.yama.ptrace_scope is 1; start the job with commprof run --watchdog, which "
            "permits py-spy to read the ranks' stacks, or set sysctl kernel.yama.ptrace_scope=0"
        )
    if scope in ("2", "3"):
        return (
            f"kernel.yama.ptrace_scope is {scope} (2: only root may read stacks, 3: nobody); set "
            "it to 0 or 1, which needs a reboot if it is 3"
        )
    return (
        "the ranks must run as the launcher's user and have no capability that the launcher lacks; "
        "in a container add CAP_SYS_PTRACE"
    )
