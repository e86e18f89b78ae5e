"""Figures of NCCL's operations, of the waits of its kernels, and of its transfers.

The kernels of an all-reduce, all-gather or reduce-scatter end together. So the shortest kernel
began last, and the wait of another kernel is its length minus the shortest length. This rule needs
no common clock. With a common clock, a second figure for the wait is the time from a kernel's begin
to the last kernel's begin.

In operations with a root, and in messages, a kernel ends when its own part is done. So waits are
not computed for these operations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.collectives.calls import phases_of
from commprof.field_groups import FieldGroup
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import map_columns, row_containing, row_of, rows_of
from commprof.trace.nccl import NcclOps, Transfers, nccl_ops, receives, sends
from commprof.trace.reader import Trace
from commprof.trace.schema import (
    NCCL_ALGORITHMS,
    NCCL_PROTOCOLS,
    NO_REPLAY,
    PHASES,
    Kind,
    op_name,
)
from commprof.units import ns_to_ms

Floats = npt.NDArray[np.float64]

_END_TOGETHER = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
#: A link is slow if its time per byte is more than ``_SLOW`` times the median of its communicator's
#: links. Communicators with fewer than ``_LINKS_TO_COMPARE`` links are not judged.
_SLOW, _LINKS_TO_COMPARE = 1.5, 4


@dataclass(frozen=True)
class Split:
    """Mean time of a transfer on one channel to one rank, in three parts in ms."""

    #: Time in which the network was sending.
    network_ms: float
    #: Time in which the peer had no buffer to offer.
    peer_ms: float
    #: Time in which the sending GPU had not filled the next buffer.
    gpu_ms: float


@dataclass(frozen=True)
class NcclKind(FieldGroup):
    """Properties that NCCL's operations of one kind share."""

    communicator: str
    #: Ranks of the communicator; 0 if not known.
    size: int
    op: str
    #: NCCL's names of the algorithm and the protocol; empty if NCCL gave none.
    algorithm: str
    protocol: str
    #: Smallest and largest number of channels.
    channels: tuple[int, int]
    #: Smallest and largest size of the calls in bytes.
    size_bytes: tuple[int, int]


@dataclass(frozen=True)
class NcclTimes(FieldGroup):
    """Times of operations of one kind; NaN if unknown."""

    #: Median time of an operation.
    duration_ms: float
    #: Median time from the first channel's begin to the last channel's begin.
    begin_spread_ms: float
    #: Median time from the first channel's end to the last channel's end.
    end_spread_ms: float
    #: Mean wait, computed from the shortest kernel.
    wait_by_kernels_ms: float
    #: Mean wait, computed from the clocks.
    wait_by_clocks_ms: float
    #: Mean length of the shortest kernel of each collective.
    transfer_ms: float


@dataclass(frozen=True)
class NcclRow:
    """Operations of one communicator that NCCL carried out in the same way."""

    kind: NcclKind
    #: Number of operations of all ranks.
    operations: int
    #: Number of these operations that were replays of CUDA graphs.
    replayed: int
    #: Each phase in which c10d issued calls, and the number of operations of these calls; largest
    #: number first. Operations without a call of c10d are left out.
    phases: tuple[tuple[str, int], ...]
    #: Indices of the DDP buckets that these operations reduced.
    buckets: tuple[int, ...]
    #: Number of steps in which the operations began; 0 if none began in a recorded step.
    steps: int
    times: NcclTimes
    #: None if NCCL's proxy was not recorded, or sent nothing.
    split: Split | None


@dataclass(frozen=True)
class NcclLink:
    """Sends from one rank to another, with the global numbers of the ranks.

    If the receiver's global rank is unknown, ``to_rank`` names its rank in the communicator, such
    as "1 of LABEL".
    """

    communicator: str
    from_rank: str
    to_rank: str
    transfers: int
    total_bytes: int
    split: Split
    #: Bytes divided by the time in which the network was sending; median over the transfers.
    gb_per_s: float
    #: Time per byte, divided by the median time per byte of the communicator's links; NaN if there
    #: are too few links to compare.
    slower: float

    @property
    def slow(self) -> bool:
        """True if the link is far slower than the others."""
        return self.slower > _SLOW


@dataclass(frozen=True)
class WaitsCompared:
    """Comparison of the waits computed from kernels with the waits computed from clocks."""

    #: Number of collectives for which both waits are known on all ranks.
    collectives: int
    #: Median absolute difference of the two waits of a kernel.
    difference_ms: float
    #: Number of collectives for which both methods find the same last rank.
    same_last: int


@dataclass(frozen=True)
class NcclWorld:
    """Figures of NCCL's operations at one world size, from records of its profiler plugin."""

    world_size: int
    rows: tuple[NcclRow, ...]
    #: Slowest first.
    links: tuple[NcclLink, ...]
    #: Number of transfers that this job's processes made for other processes.
    for_others: int
    #: Largest number of replays of a CUDA graph with operations of NCCL.
    replays: int
    #: None if the clocks cannot be compared, or if no collective has both waits.
    waits: WaitsCompared | None


@dataclass(frozen=True)
class _Ops:
    rank: Ints
    #: Label of the communicator, which need not be unique.
    communicator: npt.NDArray[np.object_]
    hash: npt.NDArray[np.object_]
    size: Ints
    phase: Ints
    bucket: Ints
    step: Ints
    recorded: NcclOps


def nccl_world(
    world_size: int, recorded: Sequence[Trace], traces: Sequence[Trace], clocks_shared: bool
) -> NcclWorld | None:
    """Analyses the operations of NCCL; None if none were recorded.

    Args:
        world_size: ranks of the job.
        recorded: traces as they were written.
        traces: the same traces, on a common clock if ``clocks_shared``.
        clocks_shared: times of the ranks can be compared.
    """
    if not any(len(columns.of_kind(trace.records, Kind.NCCL_OP)) for trace in recorded):
        return None
    ops = _all(recorded, traces)
    wait_ns, transfer_ns, late_ns, waits = _waits(ops, clocks_shared)
    splits = _splits_of(recorded)
    links, for_others = _links(recorded)
    replays = ops.recorded.replay[ops.recorded.replay != NO_REPLAY]
    return NcclWorld(
        world_size=world_size,
        rows=tuple(_rows(ops, wait_ns, transfer_ns, late_ns, splits)),
        links=tuple(links),
        for_others=for_others,
        replays=int(replays.max(initial=0)),
        waits=waits,
    )


def _all(recorded: Sequence[Trace], traces: Sequence[Trace]) -> _Ops:
    parts = [_of_rank(*pair) for pair in zip(recorded, traces, strict=True)]
    return map_columns(lambda *columns: np.concatenate(columns), *parts)


def _of_rank(recorded: Trace, trace: Trace) -> _Ops:
    ops: NcclOps = nccl_ops(trace)
    steps = columns.steps(trace)
    calls = columns.collectives(recorded)
    row = row_of(ops.op_id, calls.op_id)
    joined = (row >= 0) & (not recorded.is_of_nccl)
    phase = np.append(phases_of(recorded, calls), -1)[np.where(joined, row, -1)]
    buckets = columns.buckets(recorded)
    bucket = np.append(buckets.index, -1)[row_of(ops.op_id, buckets.op_id)]
    described = [recorded.communicators.get(number) for number in ops.communicator.tolist()]
    return _Ops(
        rank=np.full(len(ops), recorded.rank),
        communicator=np.array([c.label if c else "" for c in described], dtype=object),
        hash=np.array([c.hash if c else "" for c in described], dtype=object),
        size=np.array([c.size if c else 0 for c in described], dtype=np.int64),
        phase=phase,
        bucket=bucket,
        step=row_containing(steps.begin_ns, steps.end_ns, ops.begin_ns),
        recorded=ops,
    )


def _groups(*keys: npt.NDArray[np.generic]) -> list[Ints]:
    """Returns the rows of each distinct combination of keys, in order of first appearance."""
    numbers = np.stack([np.unique(key, return_inverse=True)[1].reshape(-1) for key in keys], axis=1)
    if len(numbers) == 0:
        return []
    _, first, member = np.unique(numbers, axis=0, return_index=True, return_inverse=True)
    member = member.reshape(-1)
    order = np.argsort(member, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(member[order])) + 1)
    return [parts[i] for i in np.argsort(first)]


def _waits(
    of_ranks: _Ops, clocks_shared: bool
) -> tuple[Floats, Floats, Floats, WaitsCompared | None]:
    """Returns three columns with a row per operation, and the comparison of the waits.

    The columns are the wait by kernels, the length of the shortest kernel, and the wait by clocks;
    NaN if unknown.
    """
    ops = of_ranks.recorded
    wait, transfer, late = (np.full(len(ops), math.nan) for _ in range(3))
    together = np.isin(ops.op, [i for i in range(64) if op_name(i) in _END_TOGETHER])
    timed, duration = ops.timed, (ops.end_ns - ops.begin_ns).astype(np.float64)
    eligible = np.flatnonzero(together & (of_ranks.size > 1))
    keys = (of_ranks.hash, ops.replay > 0, ops.seq)
    differences, same, both = [], 0, 0
    for part in _groups(*(key[eligible] for key in keys)):
        rows = eligible[part]
        whole = len(np.unique(of_ranks.rank[rows])) == len(rows) == of_ranks.size[rows[0]]
        if not whole or not timed[rows].all() or len(np.unique(ops.op[rows])) > 1:
            continue
        shortest = duration[rows].min()
        wait[rows] = duration[rows] - shortest
        transfer[rows] = shortest
        if clocks_shared:
            late[rows] = ops.begin_ns[rows].max() - ops.begin_ns[rows]
            differences.append(np.abs(wait[rows] - late[rows]))
            same += int(wait[rows].argmin() == late[rows].argmin())
            both += 1
    compared = (
        WaitsCompared(both, ns_to_ms(float(np.median(np.concatenate(differences)))), same)
        if both
        else None
    )
    return wait, transfer, late, compared


def _rows(
    of_ranks: _Ops,
    wait: Floats,
    transfer: Floats,
    late: Floats,
    splits: dict[tuple[int, int], Floats],
) -> Iterator[NcclRow]:
    ops = of_ranks.recorded
    magnitude = np.ceil(np.log2(np.maximum(ops.size_bytes, 1))).astype(np.int64)
    rows = []
    communicator = (of_ranks.communicator, of_ranks.size)
    for part in _groups(*communicator, ops.op, ops.algorithm, ops.protocol, magnitude):
        first = part[0]
        joined = Counter(of_ranks.phase[part][of_ranks.phase[part] >= 0].tolist())
        keys = set(zip(of_ranks.rank[part].tolist(), ops.op_id[part].tolist(), strict=True))
        rows.append(
            NcclRow(
                kind=NcclKind(
                    communicator=str(of_ranks.communicator[first]),
                    size=int(of_ranks.size[first]),
                    op=op_name(int(ops.op[first])),
                    algorithm=_word(NCCL_ALGORITHMS, int(ops.algorithm[first])),
                    protocol=_word(NCCL_PROTOCOLS, int(ops.protocol[first])),
                    channels=(int(ops.channels[part].min()), int(ops.channels[part].max())),
                    size_bytes=(int(ops.size_bytes[part].min()), int(ops.size_bytes[part].max())),
                ),
                operations=len(part),
                replayed=int((ops.replay[part] > 0).sum()),
                phases=tuple((PHASES[code], count) for code, count in joined.most_common()),
                buckets=tuple(_known(of_ranks.bucket[part]).tolist()),
                steps=len(_known(of_ranks.step[part])),
                times=_times(rows_of(ops, part), wait[part], transfer[part], late[part]),
                split=_mean_split([splits[key] for key in keys & splits.keys()]),
            )
        )
    yield from sorted(rows, key=_weight, reverse=True)


def _times(ops: NcclOps, wait: Floats, transfer: Floats, late: Floats) -> NcclTimes:
    timed = rows_of(ops, ops.timed)
    return NcclTimes(
        duration_ms=_median_ms(timed.end_ns - timed.begin_ns),
        begin_spread_ms=_median_ms(timed.begin_spread_ns),
        end_spread_ms=_median_ms(timed.end_spread_ns),
        wait_by_kernels_ms=_mean_ms(wait),
        wait_by_clocks_ms=_mean_ms(late),
        transfer_ms=_mean_ms(transfer),
    )


def _weight(row: NcclRow) -> tuple[float, int]:
    duration_ms = row.times.duration_ms
    return 0.0 if math.isnan(duration_ms) else duration_ms * row.operations, row.operations


def _known(numbers: Ints) -> Ints:
    return np.unique(numbers[numbers >= 0])


def _word(table: Sequence[str], code: int) -> str:
    return table[code] if code < len(table) else f"code {code}"


def _median_ms(values_ns: Ints) -> float:
    return ns_to_ms(float(np.median(values_ns))) if len(values_ns) else math.nan


def _mean_ms(values_ns: Floats) -> float:
    values = values_ns[~np.isnan(values_ns)]
    return ns_to_ms(float(values.mean())) if len(values) else math.nan


def _parts(table: Transfers) -> Floats:
    """Returns the network, peer and GPU parts of each transfer in ns, as ``[transfers, 3]``."""
    return np.stack([table.transfer_ns, table.peer_or_flush_ns, table.gpu_ns], axis=1).astype(float)


def _splits_of(recorded: Sequence[Trace]) -> dict[tuple[int, int], Floats]:
    result = {}
    for trace in recorded:
        table = sends(trace)
        parts = _parts(table)
        for rows in _groups(table.op_id):
            op_id = int(table.op_id[rows[0]])
            if op_id:
                result[trace.rank, op_id] = parts[rows]
    return result


def _mean_split(parts: Sequence[Floats]) -> Split | None:
    if not parts:
        return None
    return Split(*(ns_to_ms(float(value)) for value in np.concatenate(parts).mean(axis=0)))


def _links(recorded: Sequence[Trace]) -> tuple[list[NcclLink], int]:
    """Returns the links, slowest first, and the number of transfers made for other processes."""
    ranks = {
        (c.hash, c.rank): str(trace.rank)
        for trace in recorded
        for c in trace.communicators.values()
    }
    found: list[tuple[str, NcclLink, float]] = []
    for_others = 0
    for trace in recorded:
        table = sends(trace)
        parts = _parts(table)
        for each in (table, receives(trace)):
            for_others += int((each.communicator == 0).sum())
        for rows in _groups(table.communicator, table.peer):
            communicator = trace.communicators.get(int(table.communicator[rows[0]]))
            if communicator is None:
                continue
            peer = int(table.peer[rows[0]])
            sized = rows[(table.size_bytes[rows] > 0) & (table.transfer_ns[rows] > 0)]
            per_byte = (
                float(np.median(table.transfer_ns[sized] / table.size_bytes[sized]))
                if len(sized)
                else math.nan
            )
            split = _mean_split([parts[rows]])
            assert split is not None
            link = NcclLink(
                communicator=communicator.label,
                from_rank=str(trace.rank),
                to_rank=ranks.get((communicator.hash, peer), f"{peer} of {communicator.label}"),
                transfers=len(rows),
                total_bytes=int(table.size_bytes[rows].sum()),
                split=split,
                gb_per_s=1 / per_byte if per_byte > 0 else math.nan,
                slower=math.nan,
            )
            found.append((communicator.hash, link, per_byte))
    return _compared(found), for_others


def _compared(found: Sequence[tuple[str, NcclLink, float]]) -> list[NcclLink]:
    result = []
    for hashed, link, per_byte in found:
        others = [each for other, _, each in found if other == hashed and not math.isnan(each)]
        known = len(others) >= _LINKS_TO_COMPARE and not math.isnan(per_byte)
        slower = per_byte / float(np.median(others)) if known else math.nan
        result.append(replace(link, slower=slower))
    return sorted(result, key=lambda link: -math.inf if math.isnan(link.slower) else link.slower)[
        ::-1
    ]
