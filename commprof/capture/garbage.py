"""Long garbage collections of this process, which stop all of its Python threads.

Python collects garbage when enough objects were made. So ranks collect in different steps, and the
other ranks wait each time. The times go into the trace when capture stops.

A callback of the collector must not be Python code: a Ctrl-C during the collection would raise
KeyboardInterrupt in the callback. The interpreter prints and ignores exceptions of such callbacks,
so the program would run on.
"""

from __future__ import annotations

import gc
import json

from commprof import _native
from commprof.capture.recorder import Recorder


class GarbageCollections:
    """Notes when this process collected garbage, from :meth:`install` to :meth:`remove`.

    Does nothing without the native module.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._spans: _native.native.GarbageSpans | None = None

    def install(self) -> None:
        """Starts to note garbage collections."""
        if _native.native_error is None:
            self._spans = _native.native.GarbageSpans()
            gc.callbacks.append(self._spans)

    def remove(self) -> None:
        """Stops noting garbage collections, and writes the noted ones into the trace."""
        spans, self._spans = self._spans, None
        if spans is None or spans not in gc.callbacks:
            return
        gc.callbacks.remove(spans)
        # On a full disk, the last free bytes are left for the trace's closing block.
        if not spans.spans() or self._recorder.stats().write_errno:
            return
        begin, end = zip(*spans.spans(), strict=True)
        noted = {"total_ns": spans.total_ns(), "begin_ns": begin, "end_ns": end}
        self._recorder.add_metadata(json.dumps({"garbage": noted}))
