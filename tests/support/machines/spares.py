"""Spare processes, in which a launcher starts Python without delay.

A spare is a fork of the launcher, made before the launcher does anything but import modules.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import util
from typing import Any

from tests.support.machines.becoming import take_over

_MOST_BYTES = 1 << 20
_MOST_FDS = 8
_HIGH_FD = 200
#: multiprocessing's resource tracker starts with other code, and needs no torch.
_OF_MULTIPROCESSING = re.compile(r"from multiprocessing\.(forkserver|spawn) import")


class _Spare:
    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection

    def become(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        fds: Mapping[int, int],
        own: bool,
    ) -> int:
        """Runs ``python WORDS`` in the spare; ``own`` starts a new session.

        ``fds`` maps a file's number in the spare to the file's number in this process.
        """
        request = {
            "words": list(words),
            "environment": dict(environment),
            "directory": os.getcwd(),
            "fds": list(fds),
            "own": own,
        }
        text = json.dumps(request).encode()
        rights = array.array("i", list(fds.values()))
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
        self._connection.sendmsg([len(text).to_bytes(4, "big")], ancillary)
        self._connection.sendall(text)
        self._connection.close()
        return self.pid


class _Started(subprocess.Popen[bytes]):
    """Gives torch's launcher the interface of a process for a spare that runs already."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.args, self.pid, self.returncode = args, pid, None  # type: ignore[assignment]
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


def keep(count: int, words: list[str]) -> list[str]:
    """Returns ``words`` in this process, and in a spare the words that the launcher sent."""
    spares: list[_Spare] = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for spare in spares:
                spare._connection.close()
            ours.close()
            return _wait(theirs)
        theirs.close()
        spares.append(_Spare(pid, ours))
    _use(spares)
    return words


def _wait(connection: socket.socket) -> list[str]:
    head, fds, _, _ = socket.recv_fds(connection, 4, _MOST_FDS)
    if not head:
        os._exit(0)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        text += connection.recv(_MOST_BYTES)
    connection.close()
    request: dict[str, Any] = json.loads(text)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH_FD) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(high, request["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if request["own"]:
        os.setsid()
    take_over(request["environment"], request["directory"])
    words: list[str] = request["words"]
    return words


def _use(spares: list[_Spare]) -> None:
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    spawn, popen = util.spawnv_passfds, subprocess.Popen

    def spawn_spare(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        words = args[args.index("-c") :]
        if not (spares and _OF_MULTIPROCESSING.match(words[1])):
            return spawn(path, args, passfds)
        fds = {fd: fd for fd in passfds}
        return spares.pop().become(words, os.environ, fds, own=False)

    def popen_spare(args: Sequence[str], env: Mapping[str, str], **options: Any) -> Any:
        if not (spares and args[0] == sys.executable):
            return popen(args, env=env, **options)
        given = {1: options["stdout"], 2: options["stderr"]}
        fds = {number: file.fileno() for number, file in given.items() if file is not None}
        pid = spares.pop().become(args[1:], env, fds, own=True)
        return _Started(pid, args)

    util.spawnv_passfds = spawn_spare
    subprocess_handler.Popen = popen_spare  # type: ignore[assignment,misc]
