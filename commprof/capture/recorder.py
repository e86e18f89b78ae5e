"""The recorder of this process: the native module, or a Python recorder if that is missing."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from commprof import _native


class Marker(Protocol):
    """Interface of an object that begins and ends one phase; also a context manager."""

    def begin(self) -> None:
        """Begins the phase on the calling thread."""

    def end(self, samples: int = 0) -> None:
        """Ends the phase; only the outermost of nested phases is recorded.

        Args:
            samples: number of samples read in the phase. The samples of inner phases are added to
                the outermost phase.
        """

    def __enter__(self) -> object:
        """Begins the phase."""

    def __exit__(self, *exc: object) -> None:
        """Ends the phase."""


class Recorder(Protocol):
    """Interface of a recorder, which the native module and ``PythonRecorder`` provide."""

    def now_ns(self) -> int:
        """Returns CLOCK_MONOTONIC in nanoseconds."""
        ...

    def start(
        self,
        trace_path: str,
        ring_prefix: str,
        metadata_json: str,
        session: int,
        flush_interval_ms: int = ...,
        mode: int = ...,
        control_path: str = ...,
        switch_signal: int = ...,
    ) -> None:
        """Opens the trace and starts recording; ``mode`` is a position in ``MODES``.

        ``RecorderOptions`` in ``csrc/core/recorder.h`` describes the parameters.
        """
        ...

    def stop(self) -> None:
        """Closes the trace; does nothing if no trace is open."""
        ...

    def add_metadata(self, json: str) -> None:
        """Adds keys to the metadata of this trace and of every later one."""
        ...

    def flush(self) -> None:
        """Writes everything recorded so far to the trace."""
        ...

    def stats(self) -> Any:
        """Returns the counters that ``RecorderStats`` in ``csrc/core/recorder.h`` describes."""
        ...

    def started(self) -> bool:
        """True if a trace is open."""
        ...

    def set_enabled(self, on: bool) -> None:
        """Switches recording on or off; the trace stays open."""
        ...

    def enabled(self) -> bool:
        """True if records are being taken."""
        ...

    def mark_step(self, step: int, ended: bool, found: int = ..., /) -> None:
        """Records a step boundary; ``ended`` is False if no step ends there.

        ``found`` is one of the constants ``schema.STEP_*``, for the origin of the boundary.
        """
        ...

    def record_cost_ns(self, count: int) -> float:
        """Returns the mean time in ns that a record takes, measured with ``count`` records."""
        ...

    def install_observer(self) -> list[str]:
        """Starts observing every collective; returns the operators that are observed."""
        ...

    def set_stacks(self, on: bool, most: int = 0) -> None:
        """Sets whether the Python caller of each operation is recorded.

        ``most``: record only the callers of the next ``most`` operations; 0: all.
        """
        ...

    def PhaseMarker(self, phase: int) -> Marker:
        """Makes a marker for the phase with this code; in the native module this is a class."""
        ...


_recorder: Recorder | None = None


def recorder() -> Recorder:
    """Returns this process's recorder; prints a message once if it is the Python recorder."""
    global _recorder
    if _recorder is None:
        if _native.native is not None:
            _recorder = _native.native
        else:
            from commprof.capture.python_recorder import PythonRecorder

            print(f"commprof: {_native.native_error}", file=sys.stderr)
            python_recorder = PythonRecorder()
            python_recorder.forget_after_fork()
            _recorder = python_recorder
    return _recorder
