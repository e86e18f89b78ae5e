"""Work that DDP itself does in forward passes: sending buffers, and searching the autograd graph.

Both take time beside their collectives: buffers are copied into one tensor before the broadcast and
back after it, and the search visits each node of the graph. The times go into the trace when
capture stops.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.patches.replaced import Patches, original_of
from commprof.capture.recorder import Recorder

#: Largest number of passes noted for each kind of work.
_MOST = 4096
#: DDP's private methods, by the key of the trace's metadata. The search is the last thing that a
#: forward pass does; the method also runs without a search.
_METHODS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "ddp_buffer_syncs": ("_sync_buffers", lambda _: True),
    "ddp_searches": (
        "_post_forward",
        lambda model: model.find_unused_parameters and not model.static_graph,
    ),
}
_traced = torch.compiler.is_dynamo_compiling


class DdpWork:
    """Notes the times of DDP's own work from :meth:`install` to :meth:`remove`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = Patches()
        self._installed = False
        self._spans: dict[str, list[tuple[int, int]]] = {}

    def install(self) -> None:
        """Starts to note the work; if torch lacks a method, work of that kind is not noted."""
        self._spans, self._installed = {}, True
        for key, (name, counts) in _METHODS.items():
            if hasattr(DistributedDataParallel, name):
                self._note(key, name, counts)

    def remove(self) -> None:
        """Stops, and writes the times into the trace."""
        self._installed = False
        self._patches.remove()
        spans, self._spans = self._spans, {}
        # On a full disk, the last free bytes are left for the trace's closing block.
        if not any(spans.values()) or self._recorder.stats().write_errno:
            return
        for key, times in spans.items():
            if times:
                begin, end = zip(*times, strict=True)
                noted = {"begin_ns": begin, "end_ns": end}
                self._recorder.add_metadata(json.dumps({key: noted}))

    def _note(self, key: str, name: str, counts: Callable[[Any], bool]) -> None:
        original = original_of(getattr(DistributedDataParallel, name))
        spans = self._spans.setdefault(key, [])

        @wraps(original)
        def noted(model: Any, *args: Any, **kwargs: Any) -> Any:
            if _traced() or not self._installed or len(spans) >= _MOST or not counts(model):
                return original(model, *args, **kwargs)
            begin_ns = time.monotonic_ns()
            try:
                return original(model, *args, **kwargs)
            finally:
                spans.append((begin_ns, time.monotonic_ns()))

        self._patches.replace_for_compilers(DistributedDataParallel, name, noted)
