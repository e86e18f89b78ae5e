"""Long garbage collections of this process, which stop all of its Python threads.

Python collects garbage when enough objects were made, so each rank does it in another step, and
the others wait. The times go into the trace when capture stops.
"""

from __future__ import annotations

import gc
import json
import time
from typing import Any

from commprof.capture.recorder import Recorder

#: A shorter collection is not noted: those of young objects take microseconds.
_LEAST_NS = 1_000_000
#: Largest number of collections that are noted; the total goes on.
_MOST = 4096


class GarbageCollections:
    """Notes when this process collected garbage, from :meth:`install` to :meth:`remove`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._begin_ns = 0
        self._spans: list[tuple[int, int]] = []
        self._total_ns = 0

    def install(self) -> None:
        """Starts to note collections."""
        self._begin_ns, self._spans, self._total_ns = 0, [], 0
        gc.callbacks.append(self._note)

    def remove(self) -> None:
        """Stops, and writes the collections into the trace."""
        if self._note not in gc.callbacks:
            return
        gc.callbacks.remove(self._note)
        # On a full disk the last bytes are the closing block's.
        if not self._spans or self._recorder.stats().write_errno:
            return
        begin, end = zip(*self._spans, strict=True)
        noted = {"total_ns": self._total_ns, "begin_ns": begin, "end_ns": end}
        self._recorder.add_metadata(json.dumps({"garbage": noted}))

    def _note(self, phase: str, _: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._begin_ns = now
            return
        if now - self._begin_ns < _LEAST_NS or not self._begin_ns:
            return
        self._total_ns += now - self._begin_ns
        if len(self._spans) < _MOST:
            self._spans.append((self._begin_ns, now))
