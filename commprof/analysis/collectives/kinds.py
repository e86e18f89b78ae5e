"""Number, duration and bandwidth of collectives, by kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from commprof.analysis.align.matching import Matching
from commprof.analysis.collectives.calls import Calls, Floats, calls_of
from commprof.analysis.collectives.traffic import bus_factor
from commprof.field_groups import FieldGroup
from commprof.text import CALLED_AT, printable
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.documents import Group, group_label
from commprof.trace.lookup import distinct_rows, rows_of
from commprof.trace.operations import REDUCING, codes_of, family
from commprof.trace.ranks import Narrow
from commprof.trace.reader import TORCH_PROFILER, Trace
from commprof.trace.schema import PHASES, REDUCE_OPS, op_name
from commprof.units import ns_to_ms

#: If a kind has more sizes than this, its sizes are grouped by powers of two.
_FEW_SIZES = 8
#: A frame that contains one of these texts is not the script's. It belongs to torch, to commprof,
#: or to a decorator that torch uses.
_NOT_THE_CALLER = (
    *("/site-packages/torch/", "/dist-packages/torch/", "/commprof/capture/"),
    *("/typing_extensions.py:", "/contextlib.py:", "/functools.py:"),
)


@dataclass(frozen=True)
class Spread:
    """Median and 95th percentile of a time over calls; NaN if the time is unknown."""

    median_ms: float
    p95_ms: float


UNKNOWN: Final = Spread(math.nan, math.nan)


@dataclass(frozen=True)
class CollectiveKind(FieldGroup):
    """Properties that the calls of one kind share."""

    op: str
    #: c10d's name of the process group; empty if unknown.
    group: str
    #: The user's description of the process group; empty if unknown.
    group_description: str
    #: 0 if not known.
    group_size: int
    #: Global ranks that issued calls in the group, in ascending order; empty if not known.
    group_ranks: tuple[int, ...]
    dtype: str
    #: Empty if nothing is reduced, or if the recording does not say how.
    reduce_op: str
    #: Smallest and largest size in bytes, as nccl-tests counts size.
    size_bytes: tuple[int, int]
    #: False if the recording lacks the size and data type of the calls. Then the sizes are 0.
    sizes_known: bool = True

    @property
    def group_label(self) -> str:
        """Name of the process group in reports."""
        return group_label(self.group, self.group_description)


@dataclass(frozen=True)
class KindTimes(FieldGroup):
    """Times and bandwidth of the calls of one kind; NaN if unknown."""

    #: From issue to completion; the sum of queue, wait and transfer.
    duration: Spread = UNKNOWN
    #: From issue to start: time in gloo's queue, or behind other work on a device.
    queue: Spread = UNKNOWN
    #: From the start on this rank to the last start on the ranks that the call waits for.
    wait: Spread = UNKNOWN
    #: From the last start on the ranks that the call waits for, to completion on this rank.
    transfer: Spread = UNKNOWN
    #: Time for which these calls blocked the training thread; mean per step over all ranks.
    exposed_ms: float = math.nan
    #: Algorithm bandwidth: size / (last completion - last start), as a median over the calls.
    algbw_gb_per_s: float = math.nan
    #: Bus bandwidth: algorithm bandwidth times the bus factor.
    busbw_gb_per_s: float = math.nan


@dataclass(frozen=True)
class CollectiveRow:
    """Calls with the same operation, group, type, reduction and size, over all ranks."""

    kind: CollectiveKind
    #: Number of calls of all ranks in the measured steps.
    calls: int
    #: Number of calls that ended with an error. Of the times, only ``exposed_ms`` includes these
    #: calls.
    failed: int
    #: Calls per step and rank, over the ranks that made such calls.
    calls_per_step: float
    #: Sum of the sizes over all calls of all ranks.
    total_bytes: int
    #: Each phase and the number of calls issued in the phase, largest number first.
    phases: tuple[tuple[str, int], ...]
    #: Each line of code and its number of calls, largest number first; empty without stacks.
    callers: tuple[tuple[str, int], ...]
    times: KindTimes

    def untimed(self) -> CollectiveRow:
        """Returns a copy without times, for recordings that lack the ends of calls."""
        return replace(self, times=KindTimes())

    def unexposed(self) -> CollectiveRow:
        """Returns a copy without exposed time, for recordings that do not show it."""
        return replace(self, times=replace(self.times, exposed_ms=math.nan))


def collective_rows(
    matching: Matching,
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    measured_steps: Ints | None,
    clocks_shared: bool,
) -> tuple[CollectiveRow, ...]:
    """Returns one row per kind of call in the measured steps, largest exposed time first.

    The arguments are those of :func:`calls.calls_of`. If ``measured_steps`` is None, the whole
    recording counts as one step.
    """
    if measured_steps is not None and len(measured_steps) == 0:
        return ()
    calls = calls_of(matching, traces, tables, measured_steps, clocks_shared)
    kinds = calls.op, calls.group, calls.dtype, calls.reduce_op * reduces(calls.op)
    member, _ = distinct_rows(*kinds, _size_classes(kinds, calls.size_bytes))
    parts = _rows_by_number(member)
    del member
    by_rank = {trace.rank: trace for trace in traces}
    rows = []
    for part in parts:
        number = int(calls.group[part[0]])
        group = matching.groups[number] if number >= 0 else None
        is_known = group is None or group.name != ""
        ranks = np.unique(calls.rank[calls.group == number]).tolist() if is_known else ()
        rank_steps = len(traces) * (1 if measured_steps is None else len(measured_steps))
        of_kind = calls if len(parts) == 1 else rows_of(calls, part)  # avoids a copy
        rows.append(_row(of_kind, group, tuple(ranks), by_rank, rank_steps))
    return tuple(sorted(rows, key=_weight, reverse=True))


def _rows_by_number(number: Ints) -> list[Ints]:
    """Returns the rows of each number, in ascending order of the numbers.

    If all rows have number 0, only the first row is returned, to save memory.
    """
    if not number.any():
        return [np.zeros(1, dtype=np.int64)] if len(number) else []
    order = np.argsort(number, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


@dataclass(frozen=True)
class SteplessCollectives:
    """All calls at one world size, if no rank recorded a step.

    In ``rows``, a rank's whole recording counts as one step.
    """

    world_size: int
    rows: tuple[CollectiveRow, ...]


def stepless_collectives(
    world_size: int,
    matching: Matching,
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    clocks_shared: bool,
) -> SteplessCollectives | None:
    """Collects the calls of one world size.

    None if steps were recorded, or if there are no calls.
    """
    if any(len(columns.steps(trace)) for trace in traces) or not any(map(len, tables)):
        return None
    rows = collective_rows(matching, traces, tables, None, clocks_shared)
    # NCCL's plugin does not see the program's threads, so exposed times are unknown.
    if any(trace.is_of_nccl for trace in traces):
        rows = tuple(map(CollectiveRow.unexposed, rows))
    return SteplessCollectives(world_size, rows)


def _weight(row: CollectiveRow) -> tuple[float, float]:
    typical = row.times.duration.median_ms
    return row.times.exposed_ms, 0.0 if math.isnan(typical) else typical * row.calls


def reduces(op: Ints) -> Ints:
    """Returns 1 for each operation that reduces, else 0."""
    return np.isin(op, codes_of(*REDUCING)).astype(np.int64)


def _size_classes(kinds: Sequence[Ints], size: Ints) -> Ints:
    """Returns each call's size, or a class of sizes if calls of its kind have many sizes.

    The class -e holds the sizes with 2^(e-1) <= size < 2^e. Size 0 stays 0.
    """
    if size.strides == (0,):  # one size in all rows
        return size
    classes = size.copy()
    kind, _ = distinct_rows(*kinds)
    _, of_size = distinct_rows(kind, size)
    many = np.bincount(kind[of_size])[kind] > _FEW_SIZES
    classes[many] = -np.frexp(size[many].astype(np.float64))[1]
    return classes


def _row(
    calls: Calls,
    group: Group | None,
    group_ranks: tuple[int, ...],
    traces: dict[int, Trace],
    rank_steps: int,
) -> CollectiveRow:
    op, dtypes = op_name(int(calls.op[0])), traces[int(calls.rank[0])].metadata["dtypes"]
    callers = len(np.unique(calls.rank))
    dtype = _named(dtypes, int(calls.dtype[0]))
    recorded_by = traces[int(calls.rank[0])].metadata["capture"]
    unsaid = recorded_by == TORCH_PROFILER and not dtype and family(op) != "barrier"
    return CollectiveRow(
        kind=CollectiveKind(
            op=op,
            group=group.name if group else "",
            group_description=group.description if group else "",
            group_size=int(calls.group_size[0]),
            group_ranks=group_ranks,
            dtype=dtype if calls.size_bytes.any() else "",
            reduce_op=_named(REDUCE_OPS, int(calls.reduce_op[0])) if reduces(calls.op)[0] else "",
            size_bytes=(int(calls.size_bytes.min()), int(calls.size_bytes.max())),
            sizes_known=bool(calls.size_bytes.any()) or not unsaid,
        ),
        calls=len(calls),
        failed=int(calls.failed.sum()),
        calls_per_step=len(calls) / (rank_steps / len(traces) * callers),
        total_bytes=int(calls.size_bytes.sum()),
        phases=_counted((calls.phase,), lambda code: _named(PHASES, code)),
        callers=_counted(
            (calls.rank, calls.stack),
            lambda rank, stack: (
                caller(traces[rank].stacks[stack]) if stack in traces[rank].stacks else None
            ),
        ),
        times=_times(calls, rank_steps),
    )


def _times(calls: Calls, rank_steps: int) -> KindTimes:
    times, algbw_gb_per_s = calls.times, _median(calls.algbw_gb_per_s)
    factor = bus_factor(op_name(int(calls.op[0])), int(calls.group_size[0]))
    return KindTimes(
        duration=_spread(times.duration_ns),
        queue=_spread(times.queue_ns),
        wait=_spread(times.wait_ns),
        transfer=_spread(times.transfer_ns),
        exposed_ms=ns_to_ms(float(times.exposed_ns.sum())) / rank_steps,
        algbw_gb_per_s=algbw_gb_per_s,
        busbw_gb_per_s=algbw_gb_per_s * factor,
    )


def caller(frames: Sequence[str]) -> str:
    """Returns the innermost frame of the script, or else the innermost frame."""
    own = (frame for frame in frames if not any(part in frame for part in _NOT_THE_CALLER))
    return next(own, frames[0] if frames else "")


def short_line(frames: Sequence[str]) -> str:
    """Returns the caller's file and line, without folder: "train.py:7"; empty without frames."""
    return printable(Path(caller(frames).rsplit(" ", 1)[0]).name)


def call_path(frames: Sequence[str]) -> str:
    """Returns the lines of the script's frames, innermost first: "a.py:7 < train.py:20"."""
    script_frames = [
        frame for frame in frames if not any(part in frame for part in _NOT_THE_CALLER)
    ]
    lines = [printable(Path(frame.rsplit(" ", 1)[0]).name) for frame in script_frames]
    return CALLED_AT.join(lines) or short_line(frames)


def _named(names: Sequence[str], code: int) -> str:
    return names[code] if code < len(names) else ""


def _counted(
    columns: tuple[Narrow, ...], name: Callable[..., str | None]
) -> tuple[tuple[str, int], ...]:
    number, first = distinct_rows(*columns)
    order = np.argsort(first)  # equally frequent names are in the order of their first calls
    found: Counter[str] = Counter()
    for row, count in zip(first[order].tolist(), np.bincount(number)[order].tolist(), strict=True):
        named = name(*(int(column[row]) for column in columns))
        if named is not None:
            found[named] += count
    return tuple(found.most_common())


def _spread(values_ns: Floats) -> Spread:
    known = values_ns[~np.isnan(values_ns)]
    if len(known) == 0:
        return UNKNOWN
    median, p95 = np.percentile(known, [50, 95], overwrite_input=True)
    return Spread(ns_to_ms(float(median)), ns_to_ms(float(p95)))


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan
