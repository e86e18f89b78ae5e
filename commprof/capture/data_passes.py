"""Records the script's passes over its DataLoaders: their times, and checksums of their data.

A checksum covers the first batches of a pass, so that a report can compare the ranks' data. A pass
has no checksum if one of these batches cannot be compared. A batch that may hold only indices of
samples cannot be compared: if each rank reads its own files, equal indices mean different samples.
"""

from __future__ import annotations

import json
import time
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data.distributed import DistributedSampler

from commprof.capture.recorder import Recorder

#: Maximum number of recorded passes, and number of batches of each pass in its checksum.
_MOST_PASSES, _COMPARED = 1024, 4
#: Maximum number of parts of a batch, and of elements of a tensor, in a checksum.
_MOST_PARTS, _MOST_ELEMENTS = 64, 4096


@dataclass
class _Pass:
    sampler: int
    epoch: int
    seed: int
    begin_ns: int
    #: Number of batches of a complete pass; 0 if unknown.
    length: int = 0
    end_ns: int = 0
    batches: int = 0
    checksum: int = 0
    #: Checksums of the first batches; None for a batch that cannot be compared.
    contents: tuple[int | None, ...] = ()

    def add(self, content: int | None) -> None:
        self.contents += (content,)
        if None in self.contents:
            self.checksum = 0
        elif content is not None:
            self.checksum = zlib.crc32(content.to_bytes(4, "little"), self.checksum)

    @property
    def differing(self) -> int:
        """Number of distinct checksums in ``contents``; 0 if a batch has no checksum."""
        return 0 if None in self.contents else len(set(self.contents))


class PassNotes:
    """Records passes over DataLoaders between :meth:`start` and :meth:`stop`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._passes: list[_Pass] = []
        self._open: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        self._samplers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._runs = False

    def start(self) -> None:
        """Drops the passes of an earlier capture, and starts recording new passes."""
        self._passes, self._runs = [], True
        self._open.clear()

    def stop(self) -> None:
        """Stops recording, and writes the passes into the trace."""
        self._runs = False
        passes = [data_pass for data_pass in self._passes if data_pass.batches]
        # If the disk is full, its last bytes are kept for the block that closes the trace.
        if not passes or self._recorder.stats().write_errno:
            return
        noted = {
            "begin_ns": [data_pass.begin_ns for data_pass in passes],
            "end_ns": [data_pass.end_ns for data_pass in passes],
            "sampler": [data_pass.sampler for data_pass in passes],
            "epoch": [data_pass.epoch for data_pass in passes],
            "seed": [data_pass.seed for data_pass in passes],
            "batches": [data_pass.batches for data_pass in passes],
            "length": [data_pass.length for data_pass in passes],
            "checksum": [data_pass.checksum for data_pass in passes],
            "contents": [data_pass.differing for data_pass in passes],
        }
        self._recorder.add_metadata(json.dumps({"data_passes": noted}))

    def loaded(self, iterator: Any, batch: Any, begin_ns: int) -> None:
        """Called when a DataLoader's iterator has returned a batch.

        ``batch`` is None at the end of the iterator. ``begin_ns`` is the time at which the script
        asked for the batch.
        """
        if not self._runs:
            return
        try:
            self._note(iterator, batch, begin_ns)
        except Exception:  # a user's batch or sampler may raise anything; training must go on
            self._open.pop(iterator, None)

    def _note(self, iterator: Any, batch: Any, begin_ns: int) -> None:
        current = self._open.get(iterator)
        if batch is None:
            if current is not None:
                current.end_ns = time.monotonic_ns()
                del self._open[iterator]
            return
        # With persistent workers, all passes have the same iterator. So a first batch always begins
        # a new pass, even if the script left the previous pass early.
        if current is None or iterator._num_yielded == 1:
            if len(self._passes) >= _MOST_PASSES:
                self._open.pop(iterator, None)
                return
            current = _Pass(*self._sampler(iterator._index_sampler), begin_ns, _length(iterator))
            self._passes.append(current)
            self._open[iterator] = current
        current.batches += 1
        if current.batches <= _COMPARED:
            current.add(checksum(batch) if holds_samples(batch) else None)
        current.end_ns = time.monotonic_ns()

    def _sampler(self, sampler: Any) -> tuple[int, int, int]:
        """Returns number, epoch and seed of a DistributedSampler that shuffles; else zeros.

        Numbers and epochs begin at 1. The seed may be a large integer, so its checksum is returned.
        """
        inner = getattr(sampler, "sampler", sampler)
        if not isinstance(inner, DistributedSampler) or inner.shuffle is not True:
            return 0, 0, 0
        # A subclass may shuffle by a rule of its own.
        if type(inner).__iter__ is not DistributedSampler.__iter__:
            return 0, 0, 0
        number = self._samplers.setdefault(inner, len(self._samplers) + 1)
        return number, int(inner.epoch) + 1, zlib.crc32(str(inner.seed).encode())


def _length(iterator: Any) -> int:
    try:
        return max(0, len(iterator))
    except Exception:  # iterable data sets have no length, and a user's sampler may raise
        return 0


def holds_samples(batch: Any) -> bool:
    """False if the batch has only integers, in at most one dimension: these may be indices.

    Only the first ``_MOST_PARTS`` parts are checked, and longer containers are left out.
    """
    items = [batch]
    for _ in range(_MOST_PARTS):
        if not items:
            break
        item = items.pop()
        if isinstance(item, torch.Tensor):
            if item.ndim > 1 or item.is_floating_point() or item.is_complex():
                return True
        elif isinstance(item, np.ndarray):
            if item.ndim > 1 or item.dtype.kind in "fc":
                return True
        elif isinstance(item, str | float):
            return True
        elif isinstance(item, Mapping | list | tuple) and len(item) <= _MOST_PARTS:
            items.extend(item.values() if isinstance(item, Mapping) else item)
    return False


def checksum(batch: Any) -> int | None:
    """Returns a checksum of a batch; None if any part of the batch cannot be compared.

    Only tensors in host memory, NumPy arrays, numbers and short texts can be compared. A batch of
    more than ``_MOST_PARTS`` parts cannot be compared.
    """
    value, items, parts = 0, [batch], 0
    while items:
        item = items.pop()
        parts += 1
        if parts > _MOST_PARTS:
            return None
        if isinstance(item, torch.Tensor | np.ndarray):
            content = _elements(item)
        elif isinstance(item, str):
            # A long text is not compared: a checksum of its beginning would miss later differences.
            content = item.encode() if len(item) <= _MOST_ELEMENTS else None
        elif isinstance(item, int | float | None):
            content = str(item).encode()
        elif isinstance(item, Mapping | list | tuple) and len(item) <= _MOST_PARTS:
            items.extend(item.values() if isinstance(item, Mapping) else item)
            continue
        else:
            return None
        if content is None:
            return None
        value = zlib.crc32(content, value)
    return value


def _elements(item: torch.Tensor | np.ndarray[Any, Any]) -> bytes | None:
    """Returns the bytes of at most ``_MOST_ELEMENTS`` evenly spaced elements.

    None for an array of Python objects, and for a tensor that NumPy cannot read. Tensors are read
    by NumPy, because a ``TorchDispatchMode`` of the script would see an operator of torch.
    """
    if isinstance(item, torch.Tensor):
        if item.device.type != "cpu" or item.layout is not torch.strided:
            return None
        try:
            item = item.numpy()
        except (RuntimeError, TypeError):  # bfloat16, or a tensor that requires a gradient
            return None
    if item.dtype.hasobject:
        return None
    # ``flat`` follows the indices, so the layout in memory does not matter.
    content: bytes = item.flat[:: -(-max(item.size, 1) // _MOST_ELEMENTS)].tobytes()
    return content
