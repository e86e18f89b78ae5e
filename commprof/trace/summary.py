"""The summary block of a trace: what always-on mode keeps in the place of records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.trace import schema

Ints = npt.NDArray[np.int64]

#: Buckets of a histogram; ``csrc/core/histogram.h`` says which values are in each.
BUCKETS = 64 * 37


@dataclass(frozen=True)
class Histogram:
    """Times of one thing. ``analysis/histogram.py`` reads and merges them."""

    count: int
    #: Exact, as are the two below: nanoseconds.
    sum_ns: int
    min_ns: int
    max_ns: int
    #: Numbers of the buckets that are not empty, in order, and how many values each holds.
    buckets: Ints
    counts: Ints


@dataclass(frozen=True)
class OperationSummary:
    """All operations of one code, one process group and one size class."""

    #: Code of the operation, and ``id`` of the group; both 0 for those that found no place.
    op: int
    group: int
    #: Bits of the message's size: 0 for none, else sizes from 2**(n-1) to 2**n - 1 bytes.
    size_class: int
    #: Issued.
    count: int
    #: Sum over them of the larger of input and output.
    bytes: int
    #: Completed with an error.
    failed: int
    #: No completion was seen though the host should have seen one.
    unfinished: int
    #: From issue to completion.
    duration: Histogram
    #: In ``Work.wait``, of each wait that blocked.
    wait: Histogram


@dataclass(frozen=True)
class Summary:
    """What one rank recorded since its always-on mode began."""

    #: Counts the summaries written; the highest of a trace is the one that counts.
    sequence: int
    #: One of ``schema.MODES``: when this was written.
    mode: str
    begin_ns: int
    end_ns: int
    #: Folded into this.
    records: int
    #: Lost before they could be.
    dropped: int
    #: Completions and waits whose issue was not seen.
    unmatched: int
    #: Operations that count in the one that stands for all others.
    moved: int
    #: Per complete step but the first: its length, and its exposed time.
    steps: Histogram
    exposed: Histogram
    #: By ``schema.Phase``: time per step, less what was exposed in it.
    phases: tuple[Histogram, ...]
    operations: tuple[OperationSummary, ...]


def read_summary(payload: memoryview) -> Summary:
    """The content of a summary block.

    Raises:
        ValueError: names what is missing or unusable.
    """
    try:
        value = json.loads(bytes(payload))
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    mode = _member(value, "mode")
    if mode not in schema.MODES:
        raise ValueError(f"mode is none of {', '.join(schema.MODES)}")
    phases = tuple(_histogram(item, "phases") for item in _list(value, "phases"))
    if len(phases) != len(schema.PHASES):
        raise ValueError(f"phases has {len(phases)} items, not {len(schema.PHASES)}")
    return Summary(
        mode=mode,
        steps=_histogram(_member(value, "steps"), "steps"),
        exposed=_histogram(_member(value, "exposed"), "exposed"),
        phases=phases,
        operations=tuple(_operation(item) for item in _list(value, "operations")),
        **{name: _whole(value, name) for name in SUMMARY_COUNTERS},
    )


SUMMARY_COUNTERS = ("sequence", "begin_ns", "end_ns", "records", "dropped", "unmatched", "moved")
SUMMARY_PARTS = ("mode", "steps", "exposed", "phases", "operations")
OPERATION_COUNTERS = ("op", "group", "size_class", "count", "bytes", "failed", "unfinished")


def _operation(value: object) -> OperationSummary:
    if _whole(value, "size_class") > 64:
        raise ValueError("a size_class is above 64")
    return OperationSummary(
        duration=_histogram(_member(value, "duration"), "duration"),
        wait=_histogram(_member(value, "wait"), "wait"),
        **{name: _whole(value, name) for name in OPERATION_COUNTERS},
    )


def _histogram(value: object, where: str) -> Histogram:
    """Buckets come as pairs: distance from the bucket before, and count."""
    numbers = _list(value, "buckets")
    if len(numbers) % 2 or not all(_is_whole(number) for number in numbers):
        raise ValueError(f"the buckets of {where} are no pairs of whole numbers")
    buckets = np.cumsum(np.array(numbers[::2], dtype=np.int64))
    counts = np.array(numbers[1::2], dtype=np.int64)
    ordered = len(buckets) == 0 or (
        max(numbers[::2]) < BUCKETS and buckets[-1] < BUCKETS and (np.diff(buckets) > 0).all()
    )
    count = _whole(value, "count")
    if not ordered or sum(numbers[1::2]) != count or (counts == 0).any():
        raise ValueError(f"the buckets of {where} contradict each other or its count")
    sum_ns, min_ns, max_ns = (_whole(value, name) for name in ("sum", "min", "max"))
    if min_ns > max_ns:
        raise ValueError(f"the least of {where} is more than the most")
    return Histogram(count, sum_ns, min_ns, max_ns, buckets, counts)


def _member(value: object, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"{name} is missing")
    return value[name]


def _list(value: object, name: str) -> list[Any]:
    found = _member(value, name)
    if not isinstance(found, list):
        raise ValueError(f"{name} is not a list")
    return found


def _whole(value: object, name: str) -> int:
    found = _member(value, name)
    if not _is_whole(found):
        raise ValueError(f"{name} is not a whole number from 0 to 2**63 - 1")
    return int(found)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
