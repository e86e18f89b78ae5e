from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
_POLL_S = 0.02


@dataclass
class Rank:
    pid: int
    stdout_path: Path
    stderr_path: Path
    returncode: int | None = None

    @property
    def stdout(self) -> str:
        return self.stdout_path.read_text()

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text()


class Forks:
    def __init__(self) -> None:
        self._python = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forked_python.py"))],
            cwd=_ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self,
        arguments: list[str],
        directory: Path,
        name: str,
        *,
        recorded: bool,
        environment: dict[str, str],
        netns: str = "",
        cgroup: str = "",
        memory_bytes: int = 0,
        uid: int = 0,
    ) -> Rank:
        """Runs ``python ARGUMENTS``, or with ``recorded`` ``python -m commprof.wrap ARGUMENTS``.

        ``environment`` adds to this process's variables. A ``memory_bytes`` or ``uid`` of 0
        changes nothing.
        """
        rank = Rank(0, directory / f"{name}.out", directory / f"{name}.err")
        answer = self._ask(
            arguments=["wrap", *arguments],
            module=recorded,
            directory=str(directory),
            stdout=str(rank.stdout_path),
            stderr=str(rank.stderr_path),
            environment=environment,
            netns=netns,
            cgroup=cgroup,
            memory_bytes=memory_bytes,
            uid=uid,
        )
        rank.pid = answer["pid"]
        # The child creates its files before it runs the script.
        limit = time.monotonic() + 10
        while not rank.stderr_path.exists() and time.monotonic() < limit:
            time.sleep(_POLL_S)
        return rank

    def wait(self, rank: Rank, timeout_s: float) -> int:
        limit = time.monotonic() + timeout_s
        while rank.returncode is None:
            rank.returncode = self._ask(reap=rank.pid)["code"]
            if rank.returncode is not None:
                break
            if time.monotonic() > limit:
                os.kill(rank.pid, 9)
                said = f"{rank.stdout[-500:]}\n{rank.stderr[-2000:]}"
                raise TimeoutError(f"process {rank.pid} ran on for {timeout_s} s:\n{said}")
            time.sleep(_POLL_S)
        return rank.returncode

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(request) + "\n")
        self._python.stdin.flush()
        answer: dict[str, Any] = json.loads(self._python.stdout.readline())
        return answer

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.close()
        self._python.wait(10)
        self._python.stdout.close()
