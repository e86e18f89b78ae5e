"""Reads and caches the first metadata blocks of many traces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from commprof.errors import TraceError
from commprof.files import open_regular
from commprof.trace import documents
from commprof.trace.blocks import BlockStream
from commprof.trace.schema import BlockType


@dataclass(frozen=True)
class _Head:
    #: The file's device, inode, time of modification and size when it was read.
    stamp: bytes
    #: The trace's metadata. None if Python must read the metadata, or if the file is not a trace.
    metadata: dict[str, Any] | None
    is_trace: bool


_heads: dict[str, _Head] = {}
_MOST_HEADS = 1 << 16
_NO_FILE = np.full(4, -1, dtype=np.int64).tobytes()


def _heads_of(paths: Sequence[str]) -> Sequence[_Head | None]:
    """Returns the beginnings of files, from the cache if a file has not changed.

    None for a file that does not exist. All are None if the C++ module was not built or is too old.
    """
    try:
        from commprof._reading import file_stamps, trace_heads
    except ImportError:
        return [None] * len(paths)
    stamps = [row.tobytes() for row in file_stamps(list(paths))]
    old = (_heads.get(path) for path in paths)
    heads = [
        head if head is not None and head.stamp == stamp else None
        for head, stamp in zip(old, stamps, strict=True)
    ]
    new = [row for row, head in enumerate(heads) if head is None and stamps[row] != _NO_FILE]
    for row, text in zip(new, trace_heads([paths[row] for row in new]), strict=True):
        metadata = None
        if text:
            with suppress(ValueError):
                metadata = documents.read_metadata(memoryview(text))
        heads[row] = head = _Head(stamps[row], metadata, text is not None)
        _keep(paths[row], head)
    return heads


def _keep(path: str, head: _Head) -> None:
    if path in _heads or len(_heads) < _MOST_HEADS:
        _heads[path] = head


def traces_among(paths: Sequence[str]) -> set[str]:
    """Returns the files whose names and first bytes are those of commprof's traces.

    Empty if the C++ module was not built or is too old.
    """
    named = [path for path in paths if is_named_as_trace(os.path.basename(path))]
    heads = zip(named, _heads_of(named), strict=True)
    return {path for path, head in heads if head is not None and head.is_trace}


def is_named_as_trace(name: str) -> bool:
    """True if a file name is one that commprof gives to traces."""
    return name.startswith("rank_") and name.endswith(".trace")


def first_metadata_of(paths: Sequence[Path]) -> list[dict[str, Any] | TraceError | OSError]:
    """Returns the first metadata block of each trace, or the error of reading the block.

    Callers share the blocks and must not change them.
    """
    blocks: list[dict[str, Any] | TraceError | OSError] = []
    for path, head in zip(paths, _heads_of(list(map(os.fspath, paths))), strict=True):
        if head is not None and head.metadata is not None:
            blocks.append(head.metadata)
            continue
        try:
            blocks.append(metadata := read_first_metadata(path))
        except (TraceError, OSError) as error:
            blocks.append(error)
            continue
        if head is not None:
            _keep(os.fspath(path), replace(head, metadata=metadata))
    return blocks


def read_first_metadata(path: Path) -> dict[str, Any]:
    """Reads only the first metadata block of a trace.

    Raises:
        TraceError: the file is not a trace, or its metadata cannot be used.
        OSError: the file cannot be opened.
    """
    with open_regular(path) as file:
        for block in BlockStream(path, file):
            if block.type == BlockType.METADATA:
                try:
                    return documents.read_metadata(block.payload)
                except ValueError as error:
                    raise TraceError(f"{path}: unusable metadata: {error}") from None
    raise TraceError(
        f"{path}: no readable metadata block, so the trace cannot be used: the file is cut off "
        "or damaged near its beginning"
    )
