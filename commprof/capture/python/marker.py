"""Phase markers in Python: the rules of ``csrc/core/phase_marker.h``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from commprof.trace.schema import SAMPLES_UNKNOWN


class OpenMarker(threading.local):
    """The outermost open marker of each thread."""

    marker: PythonMarker | None = None
    #: Of the marker inside itself.
    depth = 0
    begin_ns = 0
    samples = 0


class PythonMarker:
    """Marks one phase; ``done(phase, begin_ns, end_ns, samples)`` is called for the outermost."""

    def __init__(
        self, phase: int, open_marker: OpenMarker, done: Callable[[int, int, int, int], None]
    ) -> None:
        """Markers that share ``open_marker`` nest in each other."""
        self._phase = phase
        self._open = open_marker
        self._done = done

    def begin(self) -> None:
        """Begins the phase on the calling thread."""
        if self._open.marker is None:
            self._open.marker = self
            self._open.depth = 0
            self._open.begin_ns = time.monotonic_ns()
            self._open.samples = 0
        if self._open.marker is self:
            self._open.depth += 1

    def end(self, samples: int = 0) -> None:
        """Ends it and records it, if it was the outermost; samples read inside add up."""
        self._open.samples = min(self._open.samples + samples, SAMPLES_UNKNOWN)
        if self._open.marker is not self:
            return
        self._open.depth -= 1
        if self._open.depth == 0:
            self._open.marker = None
            self._done(self._phase, self._open.begin_ns, time.monotonic_ns(), self._open.samples)

    def __enter__(self) -> PythonMarker:
        """Begins the phase."""
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the phase."""
        self.end()
