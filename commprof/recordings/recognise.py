"""What a path holds that commprof did not write."""

from __future__ import annotations

from pathlib import Path

from commprof.recordings import profiler
from commprof.recordings.containers import each_file
from commprof.recordings.recording import Recording


class _FoundError(Exception):
    """Ends the search."""


def is_recording_file(path: Path) -> bool:
    """Whether a file, or an archive, holds traces of torch.profiler; reads to the first of them."""

    def wanted(head: bytes) -> bool:
        if profiler.looks_like_trace(head):
            raise _FoundError
        return False

    try:
        if path.is_file():
            each_file(path, wanted, lambda name, stream: None)
    except _FoundError:
        return True
    return False


def read_recording(path: Path) -> Recording | None:
    """The recording at ``path``: a file, a folder or an archive; None where there is none.

    Raises:
        CommprofError: there is one, and it cannot be used.
    """
    return profiler.read_recording(path)
