"""Recognises files that other programs wrote."""

from __future__ import annotations

from pathlib import Path

from commprof.errors import CommprofError
from commprof.invocation import quoted
from commprof.recordings import profiler
from commprof.recordings.containers import each_file
from commprof.recordings.flight_recorder_files import is_flight_recorder
from commprof.recordings.inspector import is_inspector
from commprof.recordings.nccl_tests import is_nccl_tests
from commprof.recordings.other_tools import NO_COMMAND, other_tool

_MOST_LOOKED_AT = 100
_MOST_BYTES_OF_EACH = 1 << 20
#: Fields at the begin of torch's traces, which no other program writes.
_FIELDS_OF_TORCH = (b'"deviceProperties"', b'"distributedInfo"', b'"baseTimeNanoseconds"')


class _FoundError(Exception):
    """Raised to end the search of files as soon as a trace is found."""


def is_recording_file(path: Path, is_certain: bool = False) -> bool:
    """True if a file or archive holds a trace of torch.profiler.

    If ``is_certain``, the file must also have a field that only torch writes.
    """

    def wanted(head: bytes) -> bool:
        is_torch_s = any(field in head for field in _FIELDS_OF_TORCH)
        if profiler.looks_like_trace(head) and (is_torch_s or not is_certain):
            raise _FoundError
        return False

    try:
        if path.is_file():
            each_file(path, wanted, lambda name, stream: None)
    except _FoundError:
        return True
    return False


def _of_inspector(path: Path) -> str:
    return (
        f"{quoted(path)} holds logs of NCCL Inspector: commprof report, fit, compare and top read "
        "them"
    )


def taken_elsewhere(path: Path) -> str:
    """Says what ``path`` holds, and which command reads it; empty if that is not known."""
    if path.is_file() and is_nccl_tests(path):
        return (
            f"{quoted(path)} is a result of nccl-tests: commprof fit and commprof compare read it"
        )
    try:
        if is_flight_recorder(path):
            return f"{quoted(path)} holds Flight Recorder dumps: commprof report reads them"
        if is_inspector(path):
            return _of_inspector(path)
        inside = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else []
    except OSError:
        return ""
    if path.is_file() and (what := other_tool(path)):
        return f"{quoted(path)} is {what}; {NO_COMMAND}"
    if any(is_nccl_tests(file) for file in inside[:_MOST_LOOKED_AT]):
        return (
            f"{quoted(path)} holds results of nccl-tests: give its files, not the directory, to "
            "commprof fit or commprof compare"
        )
    for file in inside[:_MOST_LOOKED_AT]:
        if what := other_tool(file, _MOST_BYTES_OF_EACH):
            return f"{quoted(file)} is {what}; {NO_COMMAND}"
    return ""


def not_measured(path: Path) -> str:
    """Says what a file holds if it is not a microbenchmark; empty if that is not known."""
    try:
        what = "" if is_recording_file(path, is_certain=True) else other_tool(path)
        if not what and is_recording_file(path):
            return (
                f"{quoted(path)} is a trace of torch.profiler: give its directory to commprof fit, "
                "or the trace to commprof report"
            )
        if is_flight_recorder(path):
            return f"{quoted(path)} holds Flight Recorder dumps: commprof report reads them"
        if is_inspector(path):
            return _of_inspector(path)
    except CommprofError:
        return ""
    if not what:
        return ""
    return (
        f"{quoted(path)} is {what}; commprof fit and compare read the JSON of commprof microbench, "
        "and what nccl-tests and rccl-tests print or write (-J, -Z)"
    )
