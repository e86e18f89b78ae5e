"""Passes of the script over its DataLoaders: when they took place, and checksums of their data.

A checksum of the content of a pass's first batches goes into the trace, so that a report can
compare the ranks. Indices of samples cannot be compared: if each rank reads its own files, equal
indices mean different samples. So a batch that may hold only indices is not compared. If any part
of the first batches is not compared, the trace says nothing about the content of the pass.
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

#: Largest number of passes that are noted, and of each pass's first batches that are compared.
_MOST_PASSES, _COMPARED = 1024, 4
#: Largest number of parts of a batch, and of elements of a tensor, that enter a checksum.
_MOST_PARTS, _MOST_ELEMENTS = 64, 4096


@dataclass
class _Pass:
    """One pass over a DataLoader, while it lasts."""

    sampler: int
    epoch: int
    seed: int
    begin_ns: int
    #: Number of batches of a whole pass; 0 if it is not known.
    length: int = 0
    end_ns: int = 0
    batches: int = 0
    checksum: int = 0
    #: Checksums of the compared batches; None for a batch of which a part was not compared.
    contents: tuple[int | None, ...] = ()

    def add(self, content: int | None) -> None:
        """Adds the checksum of a batch."""
        self.contents += (content,)
        if None in self.contents:
            self.checksum = 0
        elif content is not None:
            self.checksum = zlib.crc32(content.to_bytes(4, "little"), self.checksum)

    @property
    def differing(self) -> int:
        """Number of different contents among the first batches; 0 if one has no checksum."""
        return 0 if None in self.contents else len(set(self.contents))


class PassNotes:
    """Notes passes over DataLoaders from :meth:`start` to :meth:`stop`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._passes: list[_Pass] = []
        self._open: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        self._samplers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._runs = False

    def start(self) -> None:
        """Forgets the passes of an earlier capture, and notes passes from now on."""
        self._passes, self._runs = [], True
        self._open.clear()

    def stop(self) -> None:
        """Writes the passes into the trace."""
        self._runs = False
        passes = [data_pass for data_pass in self._passes if data_pass.batches]
        # On a full disk, the last free bytes are left for the trace's closing block.
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
        """Notes that a DataLoader's iterator returned ``batch``, or has ended if ``batch`` is None.

        ``begin_ns``: when the script asked for the batch.
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
        # With persistent workers, all passes have the same iterator. If the script left a pass
        # early, the next one is recognised by its first batch.
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
        """Number, epoch and seed of a DistributedSampler that shuffles by its epoch; else zeros.

        Samplers are numbered from 1, in order of first use; the first epoch is 1. Instead of the
        seed, which may be an integer of any size, its checksum is returned.
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
    """Number of batches of a whole pass of an iterator; 0 if the data set does not tell it."""
    try:
        return max(0, len(iterator))
    except Exception:  # iterable data sets have no length; that of a user's sampler may raise
        return 0


def holds_samples(batch: Any) -> bool:
    """False for a batch that may hold only indices: only integers, and no second dimension.

    Only the first ``_MOST_PARTS`` parts are looked at.
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
    """Checksum of a batch's tensors, arrays, numbers and texts; None if any part is not compared.

    Of a large tensor, only elements at equal distances count; see ``_elements``. A part is not
    compared if it is another kind of object, a tensor on a device, a long text, or not among the
    first ``_MOST_PARTS`` parts.
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
    """Bytes of at most ``_MOST_ELEMENTS`` elements at equal distances; the others are not copied.

    None for an array of Python objects, and for a tensor that NumPy cannot read: one that is on a
    device, is not strided, requires a gradient, or has a type that NumPy lacks. Tensors are read by
    NumPy, not by an operator of torch: the script may have entered a ``TorchDispatchMode``, which
    would see the operator.
    """
    if isinstance(item, torch.Tensor):
        if item.device.type != "cpu" or item.layout is not torch.strided:
            return None
        try:
            item = item.numpy()
        except (RuntimeError, TypeError):  # it requires a gradient, or is of bfloat16
            return None
    if item.dtype.hasobject:
        return None
    # The flat iterator visits elements in order of their indices, whatever their order in memory.
    content: bytes = item.flat[:: -(-max(item.size, 1) // _MOST_ELEMENTS)].tobytes()
    return content
