"""Progress of a running job: rank 0 writes its step to a file, and the launcher shows a line."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from commprof.text import counted

if TYPE_CHECKING:
    from rich.live import Live

PROGRESS_FILE = "progress"
"""File in the job's directory with the number of steps done, in decimal."""

_INTERVAL_S = 0.2


class ProgressFile:
    """File in which rank 0 writes the number of steps done, at most every 0.2 s."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._fd = -1
        with suppress(OSError):  # on a full disk there is no progress line
            self._fd = os.open(directory / PROGRESS_FILE, flags, 0o644)
        self._due = 0.0

    def update(self, steps_done: int) -> None:
        """Writes the number of steps done. The width is fixed, so readers see a whole number."""
        now = time.monotonic()
        if self._fd >= 0 and now >= self._due:
            with suppress(OSError):
                os.pwrite(self._fd, b"%12d\n" % steps_done, 0)
            self._due = now + _INTERVAL_S

    def close(self) -> None:
        """Closes the file, which the launcher removes later."""
        if self._fd >= 0:
            os.close(self._fd)


class ProgressLine:
    """Progress of a job: a changing line on a terminal, elsewhere at most one printed line."""

    def __init__(
        self,
        directory: Path,
        world_size: int,
        steps: int,
        stream: TextIO | None = None,
        announced: str = "",
    ) -> None:
        """Prepares the line of a job.

        Args:
            directory: folder with the job's progress file.
            world_size: number of ranks.
            steps: number of training steps of the job.
            stream: where to show the line; None for sys.stderr.
            announced: description of the steps, printed once if ``stream`` is not a terminal; if
                empty, nothing is printed.
        """
        self._announced = announced
        self._path = directory / PROGRESS_FILE
        self._ranks = counted(world_size, "rank")
        self._steps = steps
        self._stream = stream or sys.stderr
        self._begin = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> ProgressLine:
        if self._stream.isatty():
            self._live = self._drawn()
            self._live.start()
        elif self._announced:
            with suppress(OSError):
                self._stream.write(f"{self._ranks}: {self._announced}\n")
                self._stream.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with suppress(OSError):  # a terminal that was closed must not end the job
                self._live.stop()
        with suppress(OSError):
            self._path.unlink()

    def _drawn(self) -> Live:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        return Live(
            get_renderable=lambda: Text(self._text(), no_wrap=True),
            console=Console(file=self._stream),
            refresh_per_second=1 / _INTERVAL_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _text(self) -> str:
        elapsed_s = time.monotonic() - self._begin
        try:
            state = f"step {int(self._path.read_text())}/{self._steps}"
        except (OSError, ValueError):
            state = "starting"
        return f"{self._ranks}: {state}, {elapsed_s:.0f} s"
