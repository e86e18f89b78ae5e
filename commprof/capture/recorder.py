"""The recorder of this process: the native module, or Python where it is missing."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from commprof import _native


class Marker(Protocol):
    """Begins and ends one phase; also a context manager."""

    def begin(self) -> None:
        """Begins the phase on the calling thread."""

    def end(self) -> None:
        """Ends it and records it, if it was the outermost."""

    def __enter__(self) -> object:
        """Begins the phase."""

    def __exit__(self, *exc: object) -> None:
        """Ends the phase."""


class Recorder(Protocol):
    """What capture needs; the native module and ``PythonRecorder`` both provide it."""

    def now_ns(self) -> int: ...
    def start(
        self,
        trace_path: str,
        ring_prefix: str,
        metadata_json: str,
        session: int,
        ring_capacity: int = ...,
        flush_interval_ms: int = ...,
    ) -> None: ...
    def stop(self) -> None: ...
    def flush(self) -> None: ...
    def stats(self) -> Any: ...
    def started(self) -> bool: ...
    def set_enabled(self, on: bool) -> None: ...
    def enabled(self) -> bool: ...
    def mark_step(self, step: int, ended: bool) -> None: ...
    def record_cost_ns(self, count: int) -> float: ...
    def install_observer(self) -> list[str]: ...
    def PhaseMarker(self, phase: int) -> Marker: ...  # noqa: N802  (a class in the native module)


_recorder: Recorder | None = None


def recorder() -> Recorder:
    """The one recorder of this process. Says once on stderr if it is not the native one."""
    global _recorder
    if _recorder is None:
        if _native.native is not None:
            _recorder = _native.native
        else:
            from commprof.capture.python_recorder import PythonRecorder

            print(f"commprof: {_native.native_error}", file=sys.stderr)
            _recorder = PythonRecorder()
    return _recorder
