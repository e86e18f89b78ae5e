"""Stacks of another process, which the program py-spy reads once or samples regularly."""

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

#: Time limit of py-spy: a process that does not answer must not block the watchdog.
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

    #: Stacks as py-spy prints them; empty without any.
    text: str
    #: The reason, as a sentence with a remedy; empty if there are stacks.
    problem: str


def find_py_spy() -> str | None:
    """Finds the py-spy program, next to this Python or on the PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def dump(pid: int) -> StackDump:
    """Reads the current Python stacks of a process.

    This also works if the process is stopped: py-spy only reads its memory and does not stop it.
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
#: Frames of libraries; py-spy cuts their paths after ``site-packages/``.
_OF_LIBRARY = re.compile(r"^(?:torch|commprof|<)|/(?:site|dist)-packages/")


#: Functions that make a process group and wait for other ranks; by function, a text that says which
#: ranks must call it.
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
#: Function in which Python's main thread waits for the other threads when the script has ended.
_AFTER_SCRIPT = re.compile(r"^ {4}_shutdown \(threading\.py:\d+\)$", re.MULTILINE)


def script_places(stacks: Mapping[int, str]) -> dict[int, str]:
    """Returns each rank's text on its script's current line: "now at train.py:7".

    If the line is not known, the text says that the rank left its script, or is empty. If all ranks
    are at the same line, for example of a helper function, the text also names the lines that
    called it, as far as they differ.

    stacks: by rank, the text of a ``StackDump``.
    """
    paths = {rank: path for rank, text in stacks.items() if (path := script_path(text))}
    lines = dict(lines_of_parts(paths, [[rank] for rank in paths]))
    return {
        rank: f"now at {lines[rank]}{_makes_group(text)}" if rank in lines else _left_script(text)
        for rank, text in stacks.items()
    }


def _makes_group(stacks: str) -> str:
    """Names the function in which a rank makes a process group: ", in new_group"; else empty."""
    made = _MAKES_GROUP.search(_main_thread(stacks))
    return f", in {made[1]}" if made else ""


def _left_script(stacks: str) -> str:
    if _AFTER_SCRIPT.search(_main_thread(stacks)):
        return "left its script, by an exception or at its end"
    return ""


def _main_thread(stacks: str) -> str:
    """Returns the frames of the main thread, innermost first."""
    _, _, main = stacks.partition("MainThread")
    return main.partition("\nThread ")[0]


def script_path(stacks: str) -> str:
    """Returns the lines of the main thread that are not in torch, Python or commprof.

    stacks: text of a ``StackDump``. The result begins with the innermost line, such as
    "helper.py:3 < train.py:7"; empty if there is no such line.
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
    """Stacks with C and C++ frames, which py-spy reads in the background for some seconds.

    py-spy stops the process during this time, so it is used only for ranks that hang.
    """

    def __init__(self, pid: int) -> None:
        """Starts py-spy for a Python process, which must not be stopped already."""
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
        """Returns the stacks, or the reason for having none; None while py-spy runs."""
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
        """Ends py-spy; the process whose stacks it reads goes on."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._errors.close()


class Sampler:
    """A py-spy that samples a process's stacks and writes them when that process or py-spy ends.

    py-spy only reads the process's memory and does not stop it: if a stack changes while it is
    read, the sample is lost or wrong.
    """

    def __init__(self, pid: int, path: Path) -> None:
        """Starts py-spy, which samples all threads, also idle ones, and writes to ``path``.

        Each line of the file has a stack and its number of samples.
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
        """Tells py-spy to stop sampling and write its file; ``end`` waits for that."""
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
            "kernel.yama.ptrace_scope is 1; start the job with commprof run, which permits py-spy "
            "to read the ranks' stacks, or set sysctl kernel.yama.ptrace_scope=0"
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
