"""Progress of reading large files, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def reading_progress() -> Iterator[Callable[[int, int], None]]:
    """Yields a function that draws a bar of the bytes read so far, if there is a terminal.

    Compressed files unpack to more than their size, so the bar may be full before the end.
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
