"""Forks Python processes from a Python that has imported torch: in 0.1 s, not 5 s.

A fork lacks some properties of a new process, such as LD_PRELOAD and its own command line in
``/proc``.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.support.machines import becoming, spares

_ROOT = Path(__file__).parents[3]
_MOST_BYTES = 1 << 24
#: triton (torch 2.15) prints this message about modules that ``gc.freeze`` kept. The last line of
#: the message has no newline at its end.
_LEAKS = re.compile(
    r"(?:(?:nanobind: | - leaked | - \.\.\. skipped remainder).*\n)+"
    r"See https://nanobind\.\S*?/refleaks\.html\n?"
)
_server: tuple[int, str] | None = None


class Forked:
    """Acts as ``subprocess.Popen`` does, for a process of the fork server."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        directory: Path | None = None,
        *,
        split: bool = False,
        spare_count: int = 0,
        netns: str = "",
    ) -> None:
        """Starts ``python WORDS``; ``split`` keeps stderr apart from stdout.

        The process may start ``spare_count`` Pythons as copies of itself, see ``spares``.
        """
        self.args = list(words)
        self.returncode: int | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors = tempfile.TemporaryFile() if split else self._output  # noqa: SIM115
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_address())
        request = {
            "words": list(words),
            "environment": dict(environment),
            "directory": str(directory or os.getcwd()),
            "spares": spare_count,
            "netns": netns,
        }
        with tempfile.TemporaryFile() as text:
            text.write(json.dumps(request).encode())
            text.flush()
            fds = array.array("i", [f.fileno() for f in (text, self._output, self._errors)])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            self._connection.sendmsg([b"x"], ancillary)
            self.pid = int(self._line())

    def _line(self) -> str:
        text = b""
        while not text.endswith(b"\n"):
            part = self._connection.recv(1)
            if not part:
                raise ChildProcessError("the fork server ended")
            text += part
        return text.decode()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._line())
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Unlike the method of Popen, kills a process that takes longer than ``timeout``."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired as error:
            self.kill()
            said = (
                f"{self.args}, which had said: {self.output()[-2000:]}{_read(self._errors)[-2000:]}"
            )
            raise subprocess.TimeoutExpired(said, error.timeout) from None
        return self.output(), _read(self._errors) if self._errors is not self._output else ""

    def output(self) -> str:
        return _read(self._output)

    def __del__(self) -> None:
        self._output.close()
        self._errors.close()
        self._connection.close()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _read(file: IO[bytes]) -> str:
    return _LEAKS.sub("", os.pread(file.fileno(), _MOST_BYTES, 0).decode(errors="replace"))


def _address() -> str:
    global _server
    if _server is None or _server[0] != os.getpid():
        directory = tempfile.mkdtemp(prefix="commprof-forks-")
        path = os.path.join(directory, "socket")
        life, held = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.machines.fork_server", path, str(life)],
            cwd=_ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            pass_fds=[life],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        os.close(life)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        _server = os.getpid(), path
        atexit.register(_end, held, process, directory)
    return _server[1]


def _end(held: int, process: subprocess.Popen[bytes], directory: str) -> None:
    os.close(held)
    process.wait()
    with suppress(OSError):
        os.unlink(os.path.join(directory, "socket"))
        os.rmdir(directory)


def _serve(path: str, life: int) -> dict[str, Any]:
    """Forks for each connection until ``life`` closes; only the children return."""
    # The first step of an optimizer imports dynamo.
    import torch._dynamo
    import torch.distributed.launcher.api
    import torch.nn.parallel  # noqa: F401

    becoming.import_commprof()
    becoming.keep_reducers()
    becoming.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, wake, life], [], [])
        if life in ready:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        if wake in ready:
            os.read(wake, 4096)
        _tell_of_the_dead(children)
        if listener not in ready:
            continue
        connection = listener.accept()[0]
        _, fds, _, _ = socket.recv_fds(connection, 1, 3)
        pid = os.fork()
        if pid:
            children[pid] = connection
            connection.sendall(f"{pid}\n".encode())
            for fd in fds:
                os.close(fd)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in (listener, connection, *children.values()):
            each.close()
        for fd in (wake, woken, life):
            os.close(fd)
        return _become(fds)


def _tell_of_the_dead(children: dict[int, socket.socket]) -> None:
    for pid in tuple(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            with suppress(OSError), children.pop(pid) as connection:
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(fds: Sequence[int]) -> dict[str, Any]:
    text, output, errors = fds
    os.lseek(text, 0, os.SEEK_SET)
    with os.fdopen(text) as file:
        request: dict[str, Any] = json.load(file)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    if request["netns"]:
        becoming.enter_host(request["netns"])
    becoming.take_over(request["environment"], request["directory"])
    return request


if __name__ == "__main__":
    wanted = _serve(sys.argv[1], int(sys.argv[2]))
    becoming.run(spares.keep(wanted["spares"], wanted["words"]))
