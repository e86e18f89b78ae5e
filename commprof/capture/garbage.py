"""Records long garbage collections, which stop all Python threads of this process.

If ranks collect garbage in different steps, the other ranks wait for each collection.

The collector's callback is native code. In a callback written in Python, a Ctrl-C would raise
KeyboardInterrupt, and the interpreter would ignore the exception.
"""

from __future__ import annotations

import gc
import json

from commprof import _native
from commprof.capture.recorder import Recorder


class GarbageCollections:
    """Records garbage collections of 1 ms or more between :meth:`install` and :meth:`remove`.

    Does nothing without the native module.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._spans: _native.native.GarbageSpans | None = None

    def install(self) -> None:
        """Starts recording garbage collections."""
        if _native.native_error is None:
            self._spans = _native.native.GarbageSpans()
            gc.callbacks.append(self._spans)

    def remove(self) -> None:
        """Stops recording, and writes the recorded collections into the trace."""
        spans, self._spans = self._spans, None
        if spans is None or spans not in gc.callbacks:
            return
        gc.callbacks.remove(spans)
        # If the disk is full, its last bytes are kept for the block that closes the trace.
        if not spans.spans() or self._recorder.stats().write_errno:
            return
        begin, end = zip(*spans.spans(), strict=True)
        noted = {"total_ns": spans.total_ns(), "begin_ns": begin, "end_ns": end}
        self._recorder.add_metadata(json.dumps({"garbage": noted}))
