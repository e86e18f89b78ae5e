"""Summaries of always-on mode as a trace holds them, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from commprof.trace.summary import histogram_of

MS = 1_000_000


def document(values_ns: list[int]) -> dict[str, Any]:
    found = histogram_of(values_ns)
    gaps = np.diff(found.buckets, prepend=0).tolist()
    pairs = [x for pair in zip(gaps, found.counts.tolist(), strict=True) for x in pair]
    counters = {"count": found.count, "sum": found.sum_ns, "min": found.min_ns}
    return {**counters, "max": found.max_ns, "buckets": pairs}


def operation(**changes: Any) -> dict[str, Any]:
    return {
        "op": 1,
        "group": 1,
        "size_class": 21,
        "count": 2,
        "bytes": 3_000_000,
        "failed": 0,
        "unfinished": 0,
        "duration": document([4 * MS, 6 * MS]),
        "wait": document([]),
        "until_last": document([1 * MS, 3 * MS]),
        "wire": document([3 * MS, 3 * MS]),
        **changes,
    }


def summary(**changes: Any) -> dict[str, Any]:
    """Two steps of 10 ms: data 1, forward 2, backward 3, optimizer 0, exposed 3, other 1."""
    return {
        "sequence": 1,
        "mode": "always-on",
        "begin_ns": 0,
        "end_ns": 2_000_000_000,
        "records": 9,
        "dropped": 0,
        "unmatched": 0,
        "moved": 0,
        "steps": document([10 * MS] * 2),
        "exposed": document([3 * MS] * 2),
        "phases": [document([n * MS] * 2) for n in (1, 1, 2, 3, 0)],
        "arrivals": {"known": 2, "unknown": 0, "unsplit_steps": 0},
        "arrival_clock_error": document([]),
        "hosts": {"clock": 0, "peers": 0, "heard": 0, "unsent": 0},
        "exposed_wait": document([1 * MS] * 2),
        "exposed_wire": document([2 * MS] * 2),
        "last": [{"rank": 0, "count": 2, "wait_ns": 0}],
        "waited_for": {"block_ns": 1 << 24, "cells": []},
        "operations": [operation()],
        **changes,
    }
