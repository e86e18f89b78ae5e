"""Passes of the script over its DataLoaders: when they took place, and whether ranks read the same.

Of the first batches of a pass, a checksum of their content goes into the trace, so that a report
can compare the ranks. Indices would not do: ranks that hold their own files count from 0 alike.
"""

from __future__ import annotations

import json
import time
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data.distributed import DistributedSampler

from commprof.capture.recorder import Recorder

#: Largest number of passes that are noted, and of batches of a pass whose content is compared.
_MOST_PASSES, _COMPARED = 1024, 4
#: Largest number of parts of a batch, and of elements of a tensor, that enter a checksum.
_MOST_PARTS, _MOST_ELEMENTS = 16, 4096


@dataclass
class _Pass:
    """One pass over a DataLoader, while it lasts."""

    sampler: int
    epoch: int
    begin_ns: int
    end_ns: int = 0
    batches: int = 0
    checksum: int = 0
    #: Checksums of the compared batches.
    contents: tuple[int, ...] = ()


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
            "batches": [data_pass.batches for data_pass in passes],
            "checksum": [data_pass.checksum for data_pass in passes],
            "contents": [len(set(data_pass.contents)) for data_pass in passes],
        }
        self._recorder.add_metadata(json.dumps({"data_passes": noted}))

    def loaded(self, iterator: Any, batch: Any, begin_ns: int) -> None:
        """Notes that an iterator of a DataLoader returned a batch, or ended: ``batch`` is None.

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
        if current is None:
            if len(self._passes) >= _MOST_PASSES:
                return
            current = _Pass(*self._sampler(iterator._index_sampler), begin_ns)
            self._passes.append(current)
            self._open[iterator] = current
        current.batches += 1
        if current.batches <= _COMPARED:
            content = checksum(batch)
            current.contents += (content,)
            current.checksum = zlib.crc32(content.to_bytes(4, "little"), current.checksum)
        current.end_ns = time.monotonic_ns()

    def _sampler(self, sampler: Any) -> tuple[int, int]:
        """Number and epoch of a DistributedSampler that shuffles by its epoch; else 0 twice.

        Samplers are numbered from 1, in order of first use; the first epoch is 1.
        """
        inner = getattr(sampler, "sampler", sampler)
        if not isinstance(inner, DistributedSampler) or inner.shuffle is not True:
            return 0, 0
        # A subclass may shuffle by a rule of its own.
        if type(inner).__iter__ is not DistributedSampler.__iter__:
            return 0, 0
        return self._samplers.setdefault(inner, len(self._samplers) + 1), int(inner.epoch) + 1


def checksum(batch: Any) -> int:
    """Checksum of a batch's tensors, numbers and texts on the host; 0 if it holds none of these.

    Large tensors enter with elements at equal distances. NumPy reads the tensors: an operator of
    torch would be seen by modes that the script may have entered.
    """
    value, items = 0, [batch]
    for _ in range(_MOST_PARTS):
        if not items:
            break
        item = items.pop()
        if isinstance(item, torch.Tensor):
            if item.device.type == "cpu" and item.layout is torch.strided:
                value = zlib.crc32(_elements(item), value)
        elif isinstance(item, str | int | float):
            value = zlib.crc32(str(item)[:_MOST_ELEMENTS].encode(), value)
        elif isinstance(item, Mapping):
            items.extend(item.values())
        elif isinstance(item, list | tuple):
            items.extend(item)
    return value


def _elements(tensor: torch.Tensor) -> bytes:
    """Bytes of at most ``_MOST_ELEMENTS`` elements; empty for types that NumPy lacks."""
    try:
        flat = tensor.numpy().reshape(-1)
    except (RuntimeError, TypeError):  # requires a gradient; bfloat16
        return b""
    content: bytes = flat[:: -(-max(flat.size, 1) // _MOST_ELEMENTS)].tobytes()
    return content
