"""Computes the offsets between the ranks' clocks from the ends of collectives.

A collective in which every rank receives data from all ranks ends on all ranks at about the same
time. With NCCL, the ends differ by some microseconds. The offset of two clocks is the median
difference of the ends. There is one median for each window of time, because clocks drift. If the
corrected ends still differ too much, the clocks are left as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.text import counted, in_micros, named_ranks
from commprof.trace import columns, schema
from commprof.trace.lookup import among, distinct_rows
from commprof.trace.operations import SYNCHRONISING, codes_of
from commprof.trace.packed import in_order
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind
from commprof.units import ns_to_us

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ENDS_TOGETHER = codes_of(*SYNCHRONISING)
#: Smallest number of collectives in a window of time, unless there is only one window.
_IN_WINDOW: Final = 16
#: Smallest average length of the windows, unless there is only one window.
_WINDOW_NS: Final = 1_000_000_000
_MOST_WINDOWS: Final = 64
#: A possible reason why the ends of collectives on devices differ, with a remedy.
_ON_DEVICES: Final = (
    "ranks share a GPU and therefore end collectives at different times. Record the same steps on "
    "all ranks, with one rank per GPU"
)
#: A possible reason why the ends of collectives on hosts differ, with a remedy.
_ON_HOSTS: Final = (
    "threads waited for a core before they could end a collective. Traces of one host need no "
    "comparison of clocks if they name the host (host_name): record without use_python_export"
)
#: Largest accepted difference of the ends, as a share of the collectives' times. Differences and
#: times are summed over the collectives.
_MOST_SHARE: Final = 0.2
_MOSTLY: Final = 0.95
#: A clock was stepped if its gain against another clock exceeds both of these limits. If NTP does
#: not step a clock, it changes the clock's rate by at most 0.0005.
_MOST_GAIN: Final = 0.001
_MOST_GAINED_NS: Final = 10_000_000


@dataclass(frozen=True)
class Ends:
    """Ends of the collectives that all ranks of the group recorded."""

    #: Array ``[collective, rank]``, with ranks in the order of the traces. 0 if the rank is not in
    #: the group.
    end_ns: Ints
    #: For each collective, the longest time that any rank spent in it.
    longest_ns: Ints


def with_compared_clocks(traces: Sequence[Trace]) -> tuple[list[Trace], str]:
    """Aligns the traces' clocks with the clock of the first trace.

    Also returns a sentence on how well the clocks agree. If the clocks cannot be aligned, the
    traces are returned unchanged.
    """
    ends = _ends(traces)
    if len(ends.end_ns) == 0:
        return list(traces), (
            "no collective that awaits all ranks (such as an all-reduce) has a recorded end on "
            "every one of its ranks, so the ranks' clocks cannot be compared and neither waiting "
            "nor transfer is known"
        )
    reached = _tree(ends.end_ns > 0)
    if reached is None:
        return list(traces), (
            "some ranks have no collective that awaits all ranks (such as an all-reduce) in common "
            "with the others, so the ranks' clocks cannot be compared and neither waiting nor "
            "transfer is known"
        )
    whole = _offset(ends.end_ns, reached)
    end_ns = np.where(ends.end_ns > 0, ends.end_ns + whole.offset_ns, 0)
    times_ns, windows = _in_windows(end_ns, reached)
    offset = np.stack([window.offset_ns for window in windows])
    error = np.stack([window.error_ns for window in windows])
    disagreement = _spread(np.where(end_ns > 0, end_ns + _between(end_ns, times_ns, offset), 0))
    typical = ns_to_us(float(np.percentile(disagreement, 100 * _MOSTLY)))
    offset = offset + whole.offset_ns
    most = ns_to_us(float(np.abs(offset).max()))
    remark = (
        f"the ends of {counted(len(disagreement), 'collective')} agree across ranks within "
        f"{in_micros(typical)} (95 % of them) after correcting the clocks by up to "
        f"{in_micros(most)}"
    )
    if stepped := _stepped(_rates(end_ns, reached), [trace.rank for trace in traces]):
        return list(traces), f"{remark}: {stepped}"
    if disagreement.sum() > _MOST_SHARE * ends.longest_ns.sum():
        has_device = any(trace.device_activity is not None for trace in traces)
        return list(traces), (
            f"{remark}: the ends differ too much to separate waiting from transfer, so neither is "
            "shown. Possible reasons: a clock jumped, the ranks recorded different collectives, or "
            f"{_ON_DEVICES if has_device else _ON_HOSTS}"
        )
    return [
        _with_records(trace, times_ns, offset[:, i], error[:, i]) for i, trace in enumerate(traces)
    ], remark


def _ends(traces: Sequence[Trace]) -> Ends:
    names: dict[str, int] = {}
    keys, ranks, end, length, size = [], [], [], [], []
    for position, trace in enumerate(traces):
        table = columns.collectives(trace)
        chosen = among(table.op, *_ENDS_TOGETHER) & (table.end_ns > 0)
        for group in trace.groups.values():
            rows = np.flatnonzero(chosen & (table.group == group.id))
            number = names.setdefault(group.name, len(names))
            keys.append((np.full(len(rows), number), table.seq[rows], table.op[rows]))
            ranks.append(np.full(len(rows), position))
            end.append(table.end_ns[rows])
            length.append(table.end_ns[rows] - table.issue_ns[rows])
            size.append(np.full(len(rows), group.size))
    if not keys:
        return Ends(np.zeros((0, len(traces)), np.int64), np.zeros(0, np.int64))
    member, first = distinct_rows(*map(np.concatenate, zip(*keys, strict=True)))
    rank, count = np.concatenate(ranks), len(first)
    table_of = np.zeros((count, len(traces)), dtype=np.int64)
    table_of[member, rank] = np.concatenate(end)
    longest, expected = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.maximum.at(longest, member, np.concatenate(length))
    np.maximum.at(expected, member, np.concatenate(size))
    seen = np.bincount(member, minlength=count)
    whole = ((table_of > 0).sum(axis=1) == expected) & (seen == expected) & (expected > 1)
    return Ends(table_of[whole], longest[whole])


@dataclass(frozen=True)
class _Offsets:
    """Offset of each rank, that is the first rank's clock minus the rank's clock; its error."""

    offset_ns: Ints
    error_ns: Ints


def _offset(end_ns: Ints, reached: Sequence[tuple[int, int]]) -> _Offsets:
    """Returns the ranks' offsets, which are summed along the tree of ranks.

    ``reached`` holds pairs of rank and parent, see :func:`_tree`.
    """
    offset, error = np.zeros((2, end_ns.shape[1]), dtype=np.int64)
    if not reached:
        return _Offsets(offset, error)
    rank, parent = np.array(reached, np.int64).T
    shared = (end_ns[:, rank] > 0) & (end_ns[:, parent] > 0)
    ahead = end_ns[:, parent] - end_ns[:, rank]
    middle = _quantiles(ahead, shared, 0.5).astype(np.int64)
    left = np.rint(_quantiles(np.abs(ahead - middle), shared, _MOSTLY)).astype(np.int64)
    for position, (one, of) in enumerate(reached):
        offset[one], error[one] = middle[position] + offset[of], left[position] + error[of]
    return _Offsets(offset, error)


def _rates(end_ns: Ints, reached: Sequence[tuple[int, int]]) -> Floats:
    """Returns the rate of each rank's clock, as a multiple of the rate of the first rank's clock.

    Rates that differ no more than those of clocks without steps count as equal. Rates are computed
    from medians of many ends, because a single end may be late if a thread had no core.
    """
    rates = np.ones(end_ns.shape[1])
    if not reached:
        return rates
    rank, parent = np.array(reached, np.int64).T
    shared = (end_ns[:, rank] > 0) & (end_ns[:, parent] > 0)
    own_ns, other_ns = (_passed_ns(end_ns[:, column], shared) for column in (rank, parent))
    is_known = (shared.sum(axis=0) >= _IN_WINDOW) & (np.minimum(own_ns, other_ns) > 0)
    most_ns = np.maximum(_MOST_GAINED_NS, _MOST_GAIN * other_ns)
    is_stepped = is_known & (np.abs(own_ns - other_ns) > most_ns)
    gain = np.divide(own_ns, other_ns, out=np.ones(len(rank)), where=is_stepped)
    for position, (one, of) in enumerate(reached):
        rates[one] = rates[of] * gain[position]
    return rates


def _passed_ns(times_ns: Ints, chosen: npt.NDArray[np.bool_]) -> Floats:
    """Returns, for each column, the last quarter's median minus the first quarter's median.

    Only chosen times count. The result is meaningless for a column without chosen times.
    """
    ordered = np.sort(np.where(chosen, times_ns, np.iinfo(np.int64).max), axis=0)
    count, column = chosen.sum(axis=0), np.arange(times_ns.shape[1])
    quarter = np.maximum(1, count // 4)

    def median(first: Ints) -> Floats:
        rows = (np.maximum(first + part // 2, 0) for part in (quarter - 1, quarter))
        low, high = (ordered[row, column].astype(np.float64) for row in rows)
        return (low + high) / 2

    return median(count - quarter) - median(np.zeros_like(count))


def _stepped(rates: Floats, ranks: Sequence[int]) -> str:
    usual = int(np.argmin(np.abs(rates - np.sort(rates)[(len(rates) - 1) // 2])))
    others = np.flatnonzero(np.abs(rates / rates[usual] - 1) > _MOST_GAIN)
    if len(others) == 0:
        return ""
    most = others[np.argmax(np.abs(np.log(rates[others] / rates[usual])))]
    return (
        f"the clock of {named_ranks([ranks[column] for column in others.tolist()])} ran at "
        f"{rates[most] / rates[usual]:.3g} times the rate of rank {ranks[usual]}'s clock. "
        "torch.profiler stretches or shrinks every duration of a rank whose wall clock is stepped "
        "while it records, so neither waiting nor transfer is shown, and times of these ranks are "
        "not comparable. Record again when the hosts' clocks are synchronised"
    )


def _quantiles(values: Ints, chosen: npt.NDArray[np.bool_], quantile: float) -> Floats:
    """Returns a quantile of each column's chosen values, interpolated as by ``np.quantile``."""
    ordered = np.sort(np.where(chosen, values, np.iinfo(np.int64).max), axis=0)
    last = chosen.sum(axis=0) - 1
    at = last * quantile
    below = np.floor(at).astype(np.int64)
    column = np.arange(values.shape[1])
    low = ordered[below, column]
    high = ordered[np.minimum(below + 1, last), column]
    part, difference = at - below, high - low
    return np.where(part >= 0.5, high - difference * (1 - part), low + difference * part)


def _in_windows(end_ns: Ints, reached: Sequence[tuple[int, int]]) -> tuple[Ints, list[_Offsets]]:
    """Returns the middle of each window of time, and the ranks' offsets in each window.

    If a rank shares no collective with its parent in some window, there is only one window.
    """
    at = end_ns.max(axis=1)
    span = int(at.max() - at.min())
    count = max(1, min(_MOST_WINDOWS, len(at) // _IN_WINDOW, span // _WINDOW_NS))
    parts = [end_ns[rows] for rows in np.array_split(np.argsort(at, kind="stable"), count)]
    rank, parent = np.array(reached, np.int64).reshape(-1, 2).T
    present = (part > 0 for part in parts)
    if not all((has_end[:, rank] & has_end[:, parent]).any(axis=0).all() for has_end in present):
        parts = [end_ns]
    middles = np.array([int(np.median(part.max(axis=1))) for part in parts], dtype=np.int64)
    return middles, [_offset(part, reached) for part in parts]


def _tree(present: npt.NDArray[np.bool_]) -> list[tuple[int, int]] | None:
    """Pairs each rank, except the first, with a parent that shares many of its collectives.

    The pairs form a tree (Prim's algorithm). None if shared collectives do not connect all ranks.
    """
    counts = np.ascontiguousarray(present.T, np.float64)
    most, place = counts @ counts[0], np.zeros(len(counts), np.int64)
    inside, found = [0], []
    outside = np.ones(len(counts), np.bool_)
    outside[0] = False
    while outside.any():
        open_counts = np.where(outside, most, -1.0)
        best = np.flatnonzero(open_counts == open_counts.max())
        rank = int(best[np.argmin(place[best])])
        if most[rank] == 0:
            return None
        found.append((rank, inside[int(place[rank])]))
        outside[rank] = False
        shared = counts @ counts[rank]
        place = np.where(shared > most, len(inside), place)
        most = np.maximum(shared, most)
        inside.append(rank)
    return found


def _between(end_ns: Ints, times_ns: Ints, offset: Ints) -> Ints:
    since, knots = (
        (end_ns - times_ns[0]).astype(np.float64),
        (times_ns - times_ns[0]).astype(np.float64),
    )
    return np.stack(
        [
            np.rint(np.interp(since[:, i], knots, offset[:, i])).astype(np.int64)
            for i in range(end_ns.shape[1])
        ],
        axis=1,
    )


def _spread(end_ns: Ints) -> Ints:
    first = np.where(end_ns > 0, end_ns, np.iinfo(np.int64).max).min(axis=1)
    spread: Ints = end_ns.max(axis=1) - first
    return spread


def _with_records(trace: Trace, times_ns: Ints, offset: Ints, error: Ints) -> Trace:
    rows = np.zeros(len(times_ns), dtype=schema.RECORD_DTYPE)
    rows["kind"] = Kind.CLOCK
    rows["timestamp_ns"], rows["value"] = times_ns - offset, offset.astype(np.int64).view(np.uint64)
    rows["bytes_in"] = error
    return replace(trace, records=in_order((trace.records, rows)))
