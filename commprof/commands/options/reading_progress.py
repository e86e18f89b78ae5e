"""Progress of reading large files, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def reading_progress() -> Iterator[Callable[[int, int], None]]:
    """Yields a function that draws a progress bar; without a terminal, it draws nothing.

    For compressed files, the bar may be full before the end.
    """
    if not sys.stderr.isatty():
        yield lambda read_bytes, of_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading")
        yield lambda read_bytes, of_bytes: progress.update(
            task, completed=min(read_bytes, of_bytes), total=of_bytes
        )
