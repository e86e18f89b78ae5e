"""Writes this host's summary, and reads the states of ranks from other hosts' summaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from commprof.analysis.summaries import SummaryPart
from commprof.monitor.state import (
    ArrivalState,
    OperationState,
    RankState,
    StepTimes,
)
from commprof.trace.host_summary import (
    MOST_BYTES,
    MOST_LISTED,
    MOST_WAITED_FOR,
    VERSION,
    SeenHost,
    encoded,
    series_of,
)
from commprof.trace.summary import BUCKETS, OperationSummary, Summary
from commprof.trace.summary_sum import MOST_OPERATIONS, coarser, document, shortened, summed

#: The operation whose latencies are written for each rank.
_OPERATION: Final = "all_reduce"
_STATUSES: Final = ("", "running", "ended", "gone")
_PLAIN: Final = ("rank", "step", "plain_bytes", "sent_bytes", "dropped", "trace_bytes")
#: Type of each part of a rank's state. The part's name begins the names of its figures, such as
#: ``total.steps``. A part may be missing.
_PARTS: Final[dict[str, type]] = {
    "total": StepTimes,
    "recent": StepTimes,
    "arrivals": ArrivalState,
    _OPERATION: OperationState,
}
_DIGITS: Final = 6


@dataclass(frozen=True)
class WrittenBy:
    """The monitor that writes a summary, and its job."""

    host: str
    attempt: int
    began_s: float
    time_s: float
    #: The next summary is written within this many seconds.
    next_s: float
    world_size: int
    backend: str
    mode: str


def host_content(ranks: Sequence[RankState], parts: Sequence[SummaryPart], by: WrittenBy) -> bytes:
    """Returns the content of this host's summary file, at most ``MOST_BYTES`` long.

    Args:
        ranks: states of the ranks that have a summary, sorted by rank.
        parts: summaries of these ranks, in the same order.
        by: the monitor that writes the file.
    """
    series = series_of([rank.rank for rank in ranks])
    covered = {rank for first, last, step in series for rank in range(first, last + 1, step)}
    rows = [row for row in _chosen(ranks, parts) if ranks[row].rank in covered]
    names: dict[str, int] = {}
    groups: dict[tuple[str, int], int] = {}
    operations = list(_operations(parts, names, groups))
    whole = summed([part.summary for part in parts], operations)
    whole = replace(whole, dropped=sum(part.dropped for part in parts))
    states = [_figures(ranks[row]) for row in rows]
    content = {
        "version": VERSION,
        "host": by.host[:255],
        "machine": [text[:80] for text in parts[0].host],
        "attempt": by.attempt,
        "began_s": round(by.began_s, 3),
        "time_s": round(by.time_s, 3),
        "next_s": round(by.next_s, 1),
        "ended": all(rank.status in ("ended", "gone") for rank in ranks),
        "world_size": by.world_size,
        "backend": by.backend[:80],
        "mode": by.mode,
        "rank_count": len(ranks),
        "series": series,
        "fewest_steps": min(part.fewest_steps for part in parts),
        "figures": {name: [state.get(name) for state in states] for name in _names(states)},
        "work_ns": [[_short(ns) for ns in parts[row].work_ns[0]] for row in rows],
        "waited_ns": [_longest(parts[row]) for row in rows],
    }
    return _fitting(content, whole, list(names), groups)


def _fitting(
    content: dict[str, Any],
    whole: Summary,
    names: Sequence[str],
    groups: Mapping[tuple[str, int], int],
) -> bytes:
    """Returns the content of the file; ``whole`` is the sum of the ranks' summaries.

    Merges operations, and then buckets of histograms, until the file is small enough.
    """
    most, width = MOST_OPERATIONS, 1
    while True:
        fewer = shortened(whole, most)
        fewer = coarser(fewer, width) if width > 1 else fewer
        used = {entry.group for entry in fewer.operations}
        total = document(fewer)
        listed = total.pop("operations")
        head = {
            **content,
            "ops": [name[:40] for name in names],
            "groups": [
                [number, name[:80], size]
                for (name, size), number in groups.items()
                if number in used
            ],
            "summary": total,
        }
        made = encoded(head, listed)
        if len(made) <= MOST_BYTES or width > BUCKETS:
            return made
        most, width = (most // 2, width) if most > 1 else (1, width * 4)


def _operations(
    parts: Sequence[SummaryPart], names: dict[str, int], groups: dict[tuple[str, int], int]
) -> Iterator[OperationSummary]:
    """Yields the operations of all ranks, with codes and group ids that all ranks share.

    Adds the new codes to ``names`` and the new group ids to ``groups``.
    """
    names["other"] = 0
    for part in parts:
        for entry in part.summary.operations:
            name = part.ops[entry.op] if entry.op < len(part.ops) else f"#{entry.op}"
            group = part.groups.get(entry.group, (f"#{entry.group}", 0))
            yield replace(
                entry,
                op=names.setdefault(name, len(names)),
                group=groups.setdefault(group, len(groups) + 1) if entry.group else 0,
            )


def _chosen(ranks: Sequence[RankState], parts: Sequence[SummaryPart]) -> list[int]:
    """Returns the indices of the ranks to list.

    If there are too many ranks, chooses the ranks with the most own work and an evenly spaced
    sample of all ranks.
    """
    if len(ranks) <= MOST_LISTED:
        return list(range(len(ranks)))
    busy = np.argsort([-sum(part.work_ns[0]) for part in parts], kind="stable")
    others = np.linspace(0, len(ranks) - 1, MOST_LISTED // 2).astype(int)
    return sorted({*busy[: MOST_LISTED // 2].tolist(), *others.tolist()})


def _longest(part: SummaryPart) -> list[int]:
    """Returns the ranks for which this rank waited longest: rank, ns, rank, ns, ..."""
    pairs = part.waited_ns[0]
    longest = np.argsort(-pairs[:, 1], kind="stable")[:MOST_WAITED_FOR]
    flat: list[int] = pairs[longest].ravel().tolist()
    return flat


def _names(states: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(states)))


def _figures(rank: RankState) -> dict[str, Any]:
    parts = {
        "total": rank.total,
        "recent": rank.recent,
        "arrivals": rank.arrivals,
        _OPERATION: rank.operations.get(_OPERATION),
    }
    return {
        **{name: _short(getattr(rank, name)) for name in _PLAIN},
        "status": _STATUSES.index(rank.status),
        "failed": int(rank.failed),
        **{
            f"{prefix}.{field.name}": _short(getattr(part, field.name))
            for prefix, part in parts.items()
            if part is not None
            for field in fields(part)
        },
    }


def _short(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def rank_states(host: SeenHost, waited_for_s: Mapping[int, float]) -> Iterator[RankState]:
    """Yields the states of the ranks that a host's summary lists.

    If the host's next summary is overdue (``host.missing``), the status of its ranks is empty.

    Args:
        host: the host. Without a summary, the result is empty.
        waited_for_s: time that the other ranks waited for each rank.

    Raises:
        ValueError: a figure that every listed rank must have is missing.
    """
    summary = host.summary
    if summary is None:
        return
    columns = {
        name: [math.nan if value is None else value for value in values]
        for name, values in summary.figures.items()
    }
    count = len(summary.listed)
    plain = {name: _column(columns, name, count) for name in (*_PLAIN, "status", "failed")}
    parts = {
        prefix: [_column(columns, f"{prefix}.{field.name}", count) for field in fields(kind)]
        for prefix, kind in _PARTS.items()
    }
    for row, rank in enumerate(summary.listed):
        made = {prefix: _part(prefix, [c[row] for c in parts[prefix]]) for prefix in _PARTS}
        operation = made[_OPERATION]
        status = _STATUSES[int(plain["status"][row] or 0) % len(_STATUSES)]
        yield RankState(
            rank=rank,
            host=summary.host,
            is_local=False,
            status="" if host.missing else status,
            step=int(plain["step"][row]),
            since_step_s=math.nan,
            total=made["total"],
            recent=made["recent"],
            operations={} if operation is None else {_OPERATION: operation},
            waited_for_s=waited_for_s.get(rank, math.nan),
            plain_bytes=plain["plain_bytes"][row],
            sent_bytes=plain["sent_bytes"][row],
            dropped=int(plain["dropped"][row]),
            trace_bytes=int(plain["trace_bytes"][row]),
            failed=bool(plain["failed"][row]),
            arrivals=made["arrivals"],
        )


def _column(columns: Mapping[str, list[float]], name: str, count: int) -> list[float]:
    """Returns a column of ``count`` values; NaN values if the column is missing.

    Raises ValueError if a column of ``_PLAIN`` is missing.
    """
    if name in _PLAIN and name not in columns:
        raise ValueError(f"figures.{name} is missing")
    return columns.get(name, [math.nan] * count)


def _part(prefix: str, values: Sequence[float]) -> Any:
    if math.isnan(values[0]):
        return None
    kind = _PARTS[prefix]
    whole = {"int"}
    return kind(
        *(
            int(value) if field.type in whole and not math.isnan(value) else value
            for field, value in zip(fields(kind), values, strict=True)
        )
    )
