"""How many samples a DataLoader returned, where that can be known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import default_collate

from commprof.trace.schema import SAMPLES_UNKNOWN

#: Tensors and containers looked at; a batch with more is not counted.
_MOST_ITEMS = 256


def samples_read(iterator: Any, batch: Any) -> int:
    """Samples in what a DataLoader's iterator just returned; SAMPLES_UNKNOWN if not known.

    They are known where every tensor of the batch has the same length in dimension 0 and that
    is the batch: torch's own collation put it there, or it is the loader's ``batch_size``, or
    less in the epoch's last batch. A loader without automatic batching is never known.
    """
    try:
        length = _common_length(batch)
        if length is None or not iterator._auto_collation:
            return SAMPLES_UNKNOWN
        if iterator._collate_fn is default_collate:
            return length
        sampler = iterator._index_sampler
        size = sampler.batch_size
        if length == size or (length < size and iterator._num_yielded == len(sampler)):
            return length
    except Exception:  # whatever a user's batch or sampler does: it is not ours to fail
        return SAMPLES_UNKNOWN
    return SAMPLES_UNKNOWN


def _common_length(batch: Any) -> int | None:
    """Dimension 0 of every tensor in nested mappings, lists and tuples; None if they differ."""
    length: int | None = None
    items = [batch]
    for _ in range(_MOST_ITEMS):
        if not items:
            return length
        item = items.pop()
        if isinstance(item, torch.Tensor):
            if item.dim() == 0 or length not in (None, item.shape[0]):
                return None
            length = int(item.shape[0])
        elif isinstance(item, Mapping):
            items.extend(item.values())
        elif isinstance(item, list | tuple):
            items.extend(item)
    return None
