"""Recognises files that other programs wrote."""

from __future__ import annotations

from pathlib import Path

from commprof.invocation import quoted
from commprof.recordings import profiler
from commprof.recordings.containers import each_file
from commprof.recordings.flight_recorder_files import is_flight_recorder
from commprof.recordings.nccl_tests import is_nccl_tests

_MOST_LOOKED_AT = 100


class _FoundError(Exception):
    """Raised to end the search of files as soon as a trace is found."""


def is_recording_file(path: Path) -> bool:
    """True if a file or archive holds a trace of torch.profiler."""

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


def taken_elsewhere(path: Path) -> str:
    """Names the commands that accept the recording at ``path``; empty if it is not recognised."""
    if path.is_file() and is_nccl_tests(path):
        return (
            f"{quoted(path)} is a result of nccl-tests: commprof fit and commprof compare read it"
        )
    try:
        if is_flight_recorder(path):
            return f"{quoted(path)} holds Flight Recorder dumps: commprof report reads them"
        inside = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else []
    except OSError:
        return ""
    if any(is_nccl_tests(each) for each in inside[:_MOST_LOOKED_AT]):
        return (
            f"{quoted(path)} holds results of nccl-tests: give its files, not the directory, to "
            "commprof fit or commprof compare"
        )
    return ""
