"""Waits of one stream for another: ``stream.wait_event``, ``stream.wait_stream``.

The native module marks a device's stream where a ``Work`` makes it wait. FSDP2 issues its
collectives on streams of its own, puts an event behind them, and lets the stream that computes
wait for that event: no Work tells of it. So the events' Python methods do. An event that was put
on a stream behind a collective stands for that collective, once; any other is none of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from commprof import _native
from commprof.capture.patches.replaced import Patches

#: Where an event keeps what it comes behind.
_BEHIND = "_commprof_behind"


class StreamWaits:
    """Replaces the methods that put an event on a stream, and that make one wait for it."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._patches = Patches()

    def install(self, event: type[Any] | None = None) -> None:
        """Begins; does nothing without the native module, or where torch has no such events.

        Args:
            event: the class; None takes CUDA's, through which its streams wait too.
        """
        native = _native.native
        if event is None and torch.backends.cuda.is_built():
            event = torch.cuda.Event
        if native is None or event is None:
            return
        self._patches.replace(event, "record", _noted(event.record, native))
        self._patches.replace(event, "wait", _timed(event.wait, native))

    def remove(self) -> None:
        """Puts everything back."""
        self._patches.remove()


def _named(stream: Any) -> tuple[int, int] | None:
    """None stays None: the stream that the calling thread works on."""
    return None if stream is None else (int(stream.device_index), int(stream.stream_id))


def _noted(original: Callable[..., Any], native: Any) -> Any:
    @wraps(original)
    def record(event: Any, stream: Any = None) -> Any:
        result = original(event, stream)
        if torch.compiler.is_compiling():
            return result
        setattr(event, _BEHIND, native.last_on_stream(_named(stream)))
        return result

    return record


def _timed(original: Callable[..., Any], native: Any) -> Any:
    @wraps(original)
    def wait(event: Any, stream: Any = None) -> Any:
        behind = None if torch.compiler.is_compiling() else getattr(event, _BEHIND, None)
        if behind is None:
            return original(event, stream)
        with native.StreamWait(_named(stream), behind):
            return original(event, stream)

    return wait
