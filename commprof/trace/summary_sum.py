"""Adds up the summaries of several ranks.

The sum has the form of one rank's summary (:mod:`commprof.trace.summary`), and holds totals over
all ranks. For example, ``steps.count`` is the total number of steps of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np

from commprof.trace.found_steps import SOURCES
from commprof.trace.summary import (
    OPERATION_COUNTERS,
    SUMMARY_COUNTERS,
    Histogram,
    Ints,
    LastRank,
    OperationSummary,
    SummarisedLinks,
    Summary,
    WaitedFor,
    merged_histogram,
)

#: Limits on the size of ``waited_for`` in a sum; see :func:`summed_waits`.
_MOST_BLOCKS: Final = 128
_MOST_CELLS: Final = 512
_MOST_RANKS: Final = 512
#: If there are more than ``_MOST_CELLS`` cells, only this many ranks keep a cell for each block.
_COSTLIEST: Final = 32
_MOST_LAST: Final = 64
MOST_OPERATIONS: Final = 64
_TIMES: Final = ("duration", "wait", "until_last", "transfer")
_HISTOGRAMS: Final = ("steps", "exposed", "arrival_clock_error", "exposed_wait", "exposed_transfer")
_ARRIVALS: Final = ("known", "unknown", "without_place", "unlisted", "partial")


def summed(summaries: Sequence[Summary], operations: Iterable[OperationSummary]) -> Summary:
    """Returns the sum of ranks' summaries.

    Args:
        summaries: at least one, in order of rank.
        operations: the operations of all summaries; ``group`` and ``op`` must mean the same on all
            ranks.
    """
    longest = max(summaries, key=lambda summary: summary.end_ns - summary.begin_ns)
    arrivals: dict[str, Any] = {
        f"arrivals_{name}": _total(summaries, f"arrivals_{name}") for name in _ARRIVALS
    }
    last, others = _last(summaries)
    counters: dict[str, Any] = {
        name: _total(summaries, name) for name in ("records", "dropped", "unmatched", "moved")
    }
    histograms: dict[str, Any] = {
        name: merged_histogram(getattr(summary, name) for summary in summaries)
        for name in _HISTOGRAMS
    }
    split = [summary.unsplit_ns for summary in summaries]
    return replace(
        longest,
        sequence=max(summary.sequence for summary in summaries),
        mode=summaries[0].mode,
        phases=tuple(
            map(merged_histogram, zip(*(summary.phases for summary in summaries), strict=True))
        ),
        unsplit_steps=_total(summaries, "unsplit_steps"),
        unsplit_ns=None if None in split else sum(ns or 0 for ns in split),
        hosts=_links(summaries),
        last=last,
        last_others_count=_total(summaries, "last_others_count") + others.count,
        last_others_wait_ns=_total(summaries, "last_others_wait_ns") + others.wait_ns,
        waited_for=summed_waits([summary.waited_for for summary in summaries]),
        operations=tuple(_operations(operations)),
        paused_ns=tuple(map(sum, zip(*(summary.paused_ns for summary in summaries), strict=True))),
        steps_end=max((summary.steps_end for summary in summaries), key=SOURCES.index),
        **counters,
        **arrivals,
        **histograms,
    )


def _total(summaries: Sequence[Summary], name: str) -> int:
    return sum(getattr(summary, name) for summary in summaries)


def _links(summaries: Sequence[Summary]) -> SummarisedLinks:
    """Joins the counters of a host, which its ranks have read at different moments."""
    links = [summary.hosts for summary in summaries]
    return SummarisedLinks(
        clock=min(link.clock for link in links),
        peers=max(link.peers for link in links),
        heard=min(link.heard for link in links),
        unsent=max(link.unsent for link in links),
        skipped=max(link.skipped for link in links),
    )


def _last(summaries: Sequence[Summary]) -> tuple[tuple[LastRank, ...], LastRank]:
    """Returns the entries of the costliest ranks, and the sum of all other entries."""
    count: dict[int, int] = {}
    wait_ns: dict[int, int] = {}
    for summary in summaries:
        for last in summary.last:
            count[last.rank] = count.get(last.rank, 0) + last.count
            wait_ns[last.rank] = wait_ns.get(last.rank, 0) + last.wait_ns
    rows = [LastRank(rank, count[rank], wait_ns[rank]) for rank in count]
    rows.sort(key=lambda row: (-row.wait_ns, row.rank))
    rest = rows[_MOST_LAST:]
    others = LastRank(0, sum(row.count for row in rest), sum(row.wait_ns for row in rest))
    return tuple(rows[:_MOST_LAST]), others


def summed_waits(parts: Sequence[WaitedFor]) -> WaitedFor:
    """Adds up waiting times by block of time and by rank.

    A cell is the waiting time for one rank in one block. If there are more than ``_MOST_CELLS``,
    only the costliest ranks keep a cell for each block. Each other rank gets a single cell, in the
    block with the rank's longest wait; ranks past the first ``_MOST_RANKS`` are left out.
    Neighbouring blocks are then joined until there are few enough cells and blocks. The blocks are
    needed to test whether a rank is late only by chance.
    """
    block_ns = max(part.block_ns for part in parts)
    blocks = [part.cells[:, 0] * part.block_ns // block_ns for part in parts]
    block = np.concatenate(blocks)
    rank, waited = (np.concatenate([part.cells[:, n] for part in parts]) for n in (1, 2))
    cells = _cells(block, rank, waited)
    others = cells[:0]
    if len(cells) > _MOST_CELLS:
        cells, others = _split(cells)
    while len(cells) > _MOST_CELLS or _span(cells, others) > _MOST_BLOCKS:
        block_ns *= 2
        cells, others = (
            _cells(part[:, 0] // 2, part[:, 1], part[:, 2]) for part in (cells, others)
        )
    return WaitedFor(block_ns, _cells(*np.concatenate([cells, others]).T))


def _split(cells: Ints) -> tuple[Ints, Ints]:
    ranks, row = np.unique(cells[:, 1], return_inverse=True)
    total = np.zeros(len(ranks), dtype=np.int64)
    np.add.at(total, row, cells[:, 2])
    order = np.argsort(-total, kind="stable")
    rest = order[_COSTLIEST:_MOST_RANKS]
    longest = np.lexsort([cells[:, 2], row])  # by rank; the longest wait of a rank comes last
    last = longest[np.searchsorted(row[longest], rest, side="right") - 1]
    costly = np.isin(row, order[:_COSTLIEST])
    return cells[costly], np.column_stack([cells[last, 0], ranks[rest], total[rest]])


def _span(*parts: Ints) -> int:
    return len(np.unique(np.concatenate([cells[:, 0] for cells in parts])))


def _cells(block: Ints, rank: Ints, waited: Ints) -> Ints:
    key, row = np.unique(np.stack([block, rank]), axis=1, return_inverse=True)
    total = np.zeros(key.shape[1], dtype=np.int64)
    np.add.at(total, row.ravel(), waited)
    return np.column_stack([key[0], key[1], total])


def _operations(operations: Iterable[OperationSummary]) -> Iterator[OperationSummary]:
    parts: dict[tuple[int, int, int], list[OperationSummary]] = {}
    for entry in operations:
        parts.setdefault((entry.op, entry.group, entry.size_class), []).append(entry)
    joined = [_joined(key, entries) for key, entries in parts.items()]
    yield from sorted(joined, key=lambda entry: (-entry.duration.sum_ns, entry.op, entry.group))


def _joined(key: tuple[int, int, int], parts: Sequence[OperationSummary]) -> OperationSummary:
    op, group, size_class = key
    times: dict[str, Any] = {
        name: merged_histogram(getattr(part, name) for part in parts) for name in _TIMES
    }
    return OperationSummary(
        op=op,
        group=group,
        size_class=size_class,
        count=sum(part.count for part in parts),
        bytes=sum(part.bytes for part in parts),
        failed=sum(part.failed for part in parts),
        unfinished=sum(part.unfinished for part in parts),
        **times,
    )


def shortened(summary: Summary, most: int) -> Summary:
    """Returns a sum with fewer entries of operations.

    The first ``most`` entries stay, and all other entries are added up by operation. If more than
    twice ``most`` entries result, the entries with the least total time become one entry of
    operation 0.
    """
    kept, rest = summary.operations[:most], summary.operations[most:]
    moved = sum(entry.count for entry in rest if entry.group)
    joined = list(_operations([*kept, *(_without_group(entry, entry.op) for entry in rest)]))
    rare = [_without_group(entry, 0) for entry in joined[2 * most :]]
    joined = list(_operations([*joined[: 2 * most], *rare]))
    return replace(summary, operations=tuple(joined), moved=summary.moved + moved)


def _without_group(operation: OperationSummary, op: int) -> OperationSummary:
    return replace(operation, op=op, group=0, size_class=0)


def coarser(summary: Summary, times: int) -> Summary:
    """Joins groups of ``times`` neighbouring buckets in all histograms of a summary."""

    def wider(histogram: Histogram) -> Histogram:
        buckets, row = np.unique(histogram.buckets // times * times, return_inverse=True)
        counts = np.zeros(len(buckets), dtype=np.int64)
        np.add.at(counts, row, histogram.counts)
        return replace(histogram, buckets=buckets + (times - 1) // 2, counts=counts)

    def all_wider(of: Any, names: Iterable[str]) -> dict[str, Any]:
        return {name: wider(getattr(of, name)) for name in names}

    return replace(
        summary,
        phases=tuple(map(wider, summary.phases)),
        operations=tuple(
            replace(entry, **all_wider(entry, _TIMES)) for entry in summary.operations
        ),
        **all_wider(summary, _HISTOGRAMS),
    )


def document(summary: Summary) -> dict[str, Any]:
    """Returns the JSON value that ``summary.summary_of`` reads."""
    arrivals: Mapping[str, Any] = {
        **{name: getattr(summary, f"arrivals_{name}") for name in _ARRIVALS},
        "unsplit_steps": summary.unsplit_steps,
        **({} if summary.unsplit_ns is None else {"unsplit_ns": summary.unsplit_ns}),
    }
    return {
        **{name: getattr(summary, name) for name in SUMMARY_COUNTERS},
        **{name: _histogram(getattr(summary, name)) for name in _HISTOGRAMS},
        "mode": summary.mode,
        "phases": [_histogram(phase) for phase in summary.phases],
        "arrivals": arrivals,
        "hosts": asdict(summary.hosts),
        "last": [asdict(last) for last in summary.last],
        "last_others": {"count": summary.last_others_count, "wait_ns": summary.last_others_wait_ns},
        "waited_for": {
            "block_ns": summary.waited_for.block_ns,
            "cells": summary.waited_for.cells.ravel().tolist(),
        },
        "operations": [
            {name: getattr(entry, name) for name in OPERATION_COUNTERS}
            | {name: _histogram(getattr(entry, name)) for name in _TIMES}
            for entry in summary.operations
        ],
        "paused": list(summary.paused_ns),
        "steps_end": summary.steps_end,
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    distances = np.diff(histogram.buckets, prepend=0)
    return {
        "count": histogram.count,
        "sum": histogram.sum_ns,
        "min": histogram.min_ns,
        "max": histogram.max_ns,
        "buckets": np.column_stack([distances, histogram.counts]).ravel().tolist(),
    }
