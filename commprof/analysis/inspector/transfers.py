"""Collects the transfers of a job's collectives, for cost curves and to compare two jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.analysis.collectives.traffic import bus_factor
from commprof.analysis.inspector.communicators import InspectedCommunicator, InspectedJob
from commprof.analysis.inspector.kinds import SPLIT, size_factor
from commprof.analysis.sweeps.sweep import RowKey, SweepResult, SweepRow
from commprof.invocation import quoted

Floats = npt.NDArray[np.float32]

#: Value of ``instrument`` in the context of a sweep that was made from logs of NCCL Inspector.
INSPECTOR: Final = "NCCL Inspector"
#: A median is used only if there are at least this many calls of one kind and size.
LEAST_CALLS: Final = 3
#: Number of parts of a run; :func:`sweep_of` treats each part as a round.
_ROUNDS: Final = 20


@dataclass(frozen=True)
class InspectedTransfers:
    """Transfers of all calls with equal operation, number of ranks, size and ``crosses_hosts``."""

    #: c10d's name of the operation.
    op: str
    ranks: int
    #: Size as nccl-tests counts it.
    size_bytes: int
    #: True if the ranks were on several hosts; None if the logs do not tell.
    crosses_hosts: bool | None
    #: Transfer of each call in µs, in the order of the calls, with one array per communicator.
    by_communicator_us: tuple[Floats, ...]

    @property
    def samples_us(self) -> Floats:
        """Transfers of all communicators in µs, one communicator after the other."""
        return np.concatenate(self.by_communicator_us)


def transfers_of(job: InspectedJob) -> list[InspectedTransfers]:
    """Returns the transfers of a job's collectives, by operation, ranks, size and hosts."""
    same: dict[tuple[str, int, int, bool | None], list[Floats]] = {}
    for one in job.communicators:
        crosses = _crosses_hosts(one, job)
        for operations in one.operations:
            op = SPLIT.get(operations.kind)
            for of_size in operations.waits.sizes if op is not None else ():
                size = of_size.size_bytes * size_factor(operations.kind, one.ranks)
                if op is not None and len(of_size.transfers_us) and size:
                    key = (op, one.ranks, size, crosses)
                    same.setdefault(key, []).append(of_size.transfers_us)
    order = sorted(same, key=lambda key: (*key[:3], key[3] is None, bool(key[3])))
    return [InspectedTransfers(*key, tuple(same[key])) for key in order]


def _crosses_hosts(one: InspectedCommunicator, job: InspectedJob) -> bool | None:
    hosts = {job.processes[place].host for place in one.process.tolist()}
    if len(hosts) > 1 and "" not in hosts:
        return True
    if one.nodes >= 1:
        return one.nodes > 1
    return None if one.missing or "" in hosts else False


def sweep_of(job: InspectedJob, path: Path) -> SweepResult:
    """Returns the transfers as a sweep, with parts of the run as its rounds."""
    rows: dict[RowKey, SweepRow] = {}
    spread: dict[tuple[str, int, int], list[Floats]] = {}
    for found in transfers_of(job):
        key = (found.op, found.ranks, found.size_bytes)
        spread.setdefault(key, []).extend(found.by_communicator_us)
    for key, parts in spread.items():
        if sum(map(len, parts)) >= LEAST_CALLS:
            row = _row(*key, parts)
            rows[row.key] = row
    return SweepResult(
        context={
            "instrument": INSPECTOR,
            "world_size": len(job.processes),
            "remarks": [
                f"{quoted(path)}: the times are from transfers in a running job, which other "
                "traffic and compute may have lengthened. Parts of the run count as rounds"
            ],
            "machine": {},
        },
        rows=tuple(rows.values()),
    )


def _row(op: str, ranks: int, size_bytes: int, parts: list[Floats]) -> SweepRow:
    rounds = [found for found in _rounds(parts) if len(found)]
    samples = np.concatenate(rounds).astype(np.float64)
    time_us = float(np.median(samples))
    algbw = size_bytes / (time_us * 1e3)
    return SweepRow(
        key=RowKey(
            op=op,
            dtype="",
            redop="",
            world_size=ranks,
            backend="nccl",
            placement="out_of_place",
            size_bytes=size_bytes,
            count=0,
        ),
        root=-1,
        time_us=time_us,
        min_us=float(samples.min()),
        p50_us=time_us,
        p99_us=float(np.percentile(samples, 99)),
        max_us=float(samples.max()),
        cv=float(samples.std() / samples.mean()),
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * bus_factor(op, ranks),
        wrong=None,
        iterations=len(samples),
        skew_us=math.nan,
        samples_us=tuple(samples.tolist()),
        round_iterations=tuple(len(found) for found in rounds),
    )


def _rounds(parts: list[Floats]) -> Iterator[Floats]:
    split = [np.array_split(part, _ROUNDS) for part in parts]
    for place in range(_ROUNDS):
        yield np.concatenate([part[place] for part in split])
