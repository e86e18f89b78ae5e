"""Computes the figures of a job from logs of NCCL Inspector."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commprof.analysis.collectives.traffic import bus_factor
from commprof.analysis.inspector.communicators import (
    InspectedCommunicator,
    InspectedJob,
    Process,
    per_block,
    process_sets,
    split_job,
)
from commprof.analysis.inspector.kinds import MESSAGE_PAIR, SPLIT, UNSPLIT, size_factor
from commprof.analysis.inspector.late_processes import LateProcess, late_processes
from commprof.analysis.inspector.origins import InspectedOrigins, origins
from commprof.analysis.inspector.own_time import (
    least_standing_out_us,
    operation_time,
    own_time,
)
from commprof.analysis.inspector.slower_processes import SlowerProcesses, slower_processes
from commprof.analysis.inspector.steps import steps_of
from commprof.field_groups import FieldGroup
from commprof.recordings.inspector import InspectorLogs, Progress, read_logs
from commprof.text import counted

if TYPE_CHECKING:
    from commprof._reading import InspectorSize

Floats = npt.NDArray[np.float64]

#: Smaller fractions of the waiting are not mentioned.
_NEGLIGIBLE = 0.01
_MOST_NAMED = 3


@dataclass(frozen=True)
class ProcessRow:
    """A process, with its times in all communicators together."""

    process: Process
    #: Rank in the communicator of all processes; None if there is no such communicator.
    rank: int | None
    #: Time in collectives and messages whose waiting is known.
    time_s: float
    #: Part of ``time_s`` that is waiting.
    waited_s: float
    #: Waiting that this process caused, summed over the other processes.
    caused_s: float
    #: Time in operations whose waiting is not known, such as broadcasts.
    unsplit_s: float


@dataclass(frozen=True)
class KindRow:
    """Operations of one kind, size and number of ranks, over all communicators."""

    #: c10d's name of the operation; NCCL's name if c10d has none.
    op: str
    ranks: int
    #: Size as nccl-tests counts it.
    size_bytes: int
    calls: int
    #: Mean time of a rank in a call: waiting and transfer together.
    time_us: float
    #: Mean waiting of a rank in a call; NaN if it is not known.
    wait_us: float
    #: Median of the calls that all ranks recorded; NaN if there are no such calls, or if the
    #: waiting is not known.
    transfer_us: float
    #: Bus bandwidth of the transfer alone; NaN if unknown.
    busbw_gb_per_s: float
    #: Bus bandwidth computed from ``time_us``, as NCCL Inspector does.
    busbw_with_waiting_gb_per_s: float
    #: Number of records of each algorithm and protocol, the most frequent first. Empty if the logs
    #: do not name algorithms.
    algorithms: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StepRow:
    """A step, or a part of a step such as a micro-batch, found from repeated calls."""

    steps: int
    #: Communicator whose repeated calls define a step.
    communicator: str
    #: These calls in words.
    calls: str
    #: Mean waiting of a process in a step.
    wait_ms: float
    #: Mean transfer of a process in a step.
    transfer_ms: float


@dataclass(frozen=True)
class CommunicatorRow:
    """One communicator; counts of calls and records leave out operations of unknown waiting."""

    label: str
    id: str
    ranks: int
    recorded_ranks: int
    nodes: int
    calls: int
    #: Calls that all ranks recorded.
    complete_calls: int
    #: Mean time of a recorded rank in operations of the communicator whose waiting is known.
    time_s: float
    wait_s: float
    #: Process that caused most waiting in this communicator. The waiting may have begun elsewhere.
    most_waited_for: Process | None
    #: Fraction of the communicator's waiting that this process caused.
    most_share: float
    lost_records: int
    #: Number of calls that no rank recorded. They leave gaps in the sequence numbers.
    missing_calls: int


@dataclass(frozen=True)
class InspectedLogs(FieldGroup):
    """Path and contents of the logs."""

    path: Path
    versions: tuple[str, ...]
    processes: int
    hosts: int
    operations: int


@dataclass(frozen=True)
class MeanTimes(FieldGroup):
    """Mean times per process."""

    #: Time in collectives and messages whose waiting is known.
    time_s: float
    #: Part of ``time_s`` that is waiting.
    wait_s: float
    #: Time in operations whose waiting is not known, such as broadcasts.
    unsplit_s: float

    @property
    def waiting(self) -> float:
        """Waiting as a fraction of ``time_s``, which must not be 0."""
        return self.wait_s / self.time_s


@dataclass(frozen=True)
class LowestBandwidth(FieldGroup):
    """Process with the lowest mean bandwidth, which other tools call slow."""

    #: None if no waiting is known.
    lowest_bandwidth: Process | None
    #: Waiting as a fraction of this process's time in operations.
    lowest_waits: float


@dataclass(frozen=True)
class InspectorResult:
    """Figures of a job from the logs of NCCL Inspector."""

    logs: InspectedLogs
    mean: MeanTimes
    #: None if it is not known which calls make a step.
    step: StepRow | None
    late: tuple[LateProcess, ...]
    #: Processes that work longer than all others; None if there are none, or if some are late.
    slower: SlowerProcesses | None
    lowest: LowestBandwidth
    kinds: tuple[KindRow, ...]
    process_rows: tuple[ProcessRow, ...]
    communicators: tuple[CommunicatorRow, ...]
    graph_captured: int
    #: True if calls or ranks are missing, so that the true waiting may be longer.
    is_lower_bound: bool
    #: A process that is late by less than this time, summed over the run, may be missed. NaN if
    #: unknown.
    least_late_s: float
    #: Caveats on unknown figures and unreadable data, as sentences without a full stop.
    caveats: tuple[str, ...]


def inspector_result(path: Path, progress: Progress | None = None) -> InspectorResult:
    """Reads the logs at ``path`` and computes the figures.

    Args:
        path: a file, folder or archive.
        progress: as for :func:`read_logs`.

    Raises:
        CommprofError: there is no operation to read.
    """
    logs = read_logs(path, progress)
    return result_of(logs, split_job(logs))


def result_of(logs: InspectorLogs, job: InspectedJob) -> InspectorResult:
    """Computes the figures of a job from its logs and from the split times in ``job``."""
    traced = origins(job)
    time_us = time_by_process(job, is_split=True)
    unsplit_us = time_by_process(job, is_split=False)
    waited_us = traced.waited_us.sum(axis=0)
    count = len(job.processes)
    rows = tuple(_communicator_row(each, job) for each in job.communicators)
    operation_us = operation_time(job)
    late = late_processes(job, traced, time_us, operation_us)
    late_numbers = [job.processes.index(row.process) for row in late]
    own_us = own_time(operation_us, process_sets(job.communicators, count))
    least_late_s = least_standing_out_us(own_us, late_numbers) / 1e6
    return InspectorResult(
        logs=InspectedLogs(
            path=logs.path,
            versions=tuple(sorted({log.version for log in logs.logs})),
            processes=count,
            hosts=len({process.host for process in job.processes}),
            operations=sum(log.operations for log in logs.logs),
        ),
        mean=MeanTimes(
            *(float(us.sum()) / count / 1e6 for us in (time_us, waited_us, unsplit_us)),
        ),
        step=_step(job, float(time_us.sum()) / count, float(waited_us.sum()) / count),
        late=late,
        slower=None if late else slower_processes(job, traced, time_us, operation_us),
        lowest=_lowest_bandwidth(job, time_us, waited_us),
        kinds=kind_rows(job.communicators),
        process_rows=_process_rows(job, traced, time_us, unsplit_us),
        communicators=tuple(sorted(rows, key=lambda row: -row.wait_s * row.recorded_ranks)),
        graph_captured=sum(
            each.graph_captured for one in job.communicators for each in one.operations
        ),
        is_lower_bound=any(
            row.calls > row.complete_calls or row.ranks > row.recorded_ranks for row in rows
        ),
        least_late_s=least_late_s,
        caveats=(*job.problems, *_unknown(logs, job, traced, least_late_s), *logs.problems),
    )


def _step(job: InspectedJob, time_us: float, waited_us: float) -> StepRow | None:
    """Divides the mean times of a process in the whole run by the number of steps."""
    found = steps_of(job.repeated)
    if found is None:
        return None
    return StepRow(
        steps=found.turns,
        communicator=found.communicator,
        calls=found.text,
        wait_ms=waited_us / found.turns / 1e3,
        transfer_ms=(time_us - waited_us) / found.turns / 1e3,
    )


def world_ranks(job: InspectedJob) -> dict[int, int]:
    """Returns each process's rank in the communicator that has all processes of the job.

    If the job was started several times, each start has its own such communicator. Processes
    without such a communicator are left out.
    """
    sets = process_sets(job.communicators, len(job.processes))
    ranks: dict[int, int] = {}
    for group in job.communicators:
        of_set = int((sets == sets[group.process[0]]).sum())
        if group.ranks == len(group.recorded) == of_set and int(group.process[0]) not in ranks:
            ranks.update(zip(group.process.tolist(), group.recorded, strict=True))
    return ranks


def _process_rows(
    job: InspectedJob, traced: InspectedOrigins, time_us: Floats, unsplit_us: Floats
) -> tuple[ProcessRow, ...]:
    ranks = world_ranks(job)
    columns = (time_us, traced.waited_us.sum(axis=0), traced.began_us.sum(axis=0), unsplit_us)
    figures = (np.array(columns).T / 1e6).tolist()
    order = sorted(
        range(len(job.processes)),
        key=lambda place: (
            ranks.get(place, -1),
            job.processes[place].host,
            job.processes[place].pid,
        ),
    )
    return tuple(
        ProcessRow(job.processes[place], ranks.get(place), *figures[place]) for place in order
    )


def time_by_process(job: InspectedJob, is_split: bool) -> Floats:
    """Returns the time in µs that each process spends in operations.

    ``is_split``: True for operations whose waiting is known, False for all other operations.
    """
    total = np.zeros(len(job.processes))
    for communicator in job.communicators:
        for operations in communicator.operations:
            if operations.is_split == is_split:
                np.add.at(total, communicator.process, operations.waits.time_us)
    return total


def _lowest_bandwidth(job: InspectedJob, time_us: Floats, waited_us: Floats) -> LowestBandwidth:
    """Returns the process with the most time in operations.

    All ranks of a communicator exchange equally many bytes, so this process has the lowest mean
    bandwidth.
    """
    if not len(time_us) or not time_us.max() > 0 or not waited_us.sum() > 0:
        return LowestBandwidth(None, math.nan)
    lowest = int(np.argmax(time_us))
    return LowestBandwidth(job.processes[lowest], float(waited_us[lowest] / time_us[lowest]))


def kind_rows(communicators: Sequence[InspectedCommunicator]) -> tuple[KindRow, ...]:
    """Returns a row for each kind, number of ranks and size, sorted by time, the longest first."""
    same: dict[tuple[str, int, int, bool], list[InspectorSize]] = {}
    algorithms: dict[tuple[str, int, int], Counter[str]] = {}
    for communicator in communicators:
        for (kind, size_bytes, name), records in communicator.algorithms.items():
            of_kind = algorithms.setdefault((kind, communicator.ranks, size_bytes), Counter())
            of_kind[name] += records
        for operations in communicator.operations:
            for of_size in operations.waits.sizes:
                ranks = 2 if operations.kind == MESSAGE_PAIR else communicator.ranks
                key = operations.kind, ranks, of_size.size_bytes, operations.is_split
                same.setdefault(key, []).append(of_size)
    rows = [
        _kind_row(*key, parts, algorithms.get(key[:3], Counter())) for key, parts in same.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.time_us * row.calls * row.ranks))


def _kind_row(
    kind: str,
    ranks: int,
    size_bytes: int,
    is_split: bool,
    parts: Sequence[InspectorSize],
    algorithms: Counter[str],
) -> KindRow:
    op = {**SPLIT, **UNSPLIT, MESSAGE_PAIR: "send/recv"}.get(kind, kind)
    records = sum(part.records for part in parts)
    time_us = sum(part.time_us for part in parts) / records
    wait_us = sum(part.wait_us for part in parts) / records if is_split else math.nan
    transfers = np.concatenate(
        [part.transfers_us for part in parts if is_split] or [np.zeros(0, np.float32)]
    )
    transfer_us = float(np.median(transfers)) if len(transfers) else math.nan
    size = size_bytes * size_factor(kind, ranks)
    factor = 1.0 if kind == MESSAGE_PAIR else bus_factor(op, ranks)
    return KindRow(
        op=op,
        ranks=ranks,
        size_bytes=size,
        calls=sum(part.calls for part in parts),
        time_us=time_us,
        wait_us=wait_us,
        transfer_us=transfer_us,
        busbw_gb_per_s=factor * size / transfer_us / 1e3 if transfer_us > 0 else math.nan,
        busbw_with_waiting_gb_per_s=factor * size / time_us / 1e3 if time_us > 0 else math.nan,
        algorithms=tuple(algorithms.most_common()),
    )


def _communicator_row(communicator: InspectedCommunicator, job: InspectedJob) -> CommunicatorRow:
    split, recorded = communicator.split, len(communicator.recorded)
    caused = per_block(split, "caused_us", job.blocks, recorded).sum(axis=0)
    total = float(caused.sum()) + sum(waits.unattributed_us for waits in split)
    most = int(np.argmax(caused)) if caused.any() else None
    return CommunicatorRow(
        label=communicator.label,
        id=communicator.id,
        ranks=communicator.ranks,
        recorded_ranks=recorded,
        nodes=communicator.nodes,
        calls=sum(waits.calls for waits in split),
        complete_calls=sum(waits.complete_calls for waits in split),
        time_s=sum(float(waits.time_us.sum()) for waits in split) / recorded / 1e6,
        wait_s=total / recorded / 1e6,
        most_waited_for=None if most is None else job.processes[communicator.process[most]],
        most_share=math.nan if most is None else float(caused[most]) / total,
        lost_records=sum(waits.lost_records for waits in split),
        missing_calls=sum(waits.missing_calls for waits in split),
    )


def _by_loss(job: InspectedJob) -> str:
    lost: Counter[int] = Counter()
    for one in job.communicators:
        for waits in one.split:
            lost.update(dict(zip(one.process.tolist(), waits.lost_calls.tolist(), strict=False)))
    most = [(place, number) for place, number in lost.most_common(_MOST_NAMED) if number]
    named = ", ".join(f"{number} of {job.processes[place].label}" for place, number in most)
    return f" (among them {named})" if named else ""


def _unknown(
    logs: InspectorLogs, job: InspectedJob, traced: InspectedOrigins, least_late_s: float
) -> list[str]:
    waits_of_all = [each.waits for one in job.communicators for each in one.operations]
    lost = sum(each.lost_records for each in waits_of_all)
    dropped = sum(one.dropped for one in job.communicators)
    untimed = sum(each.untimed_records for each in waits_of_all)
    unmatched = sum(each.unmatched_records for each in waits_of_all)
    sizes = sum(each.different_sizes for each in waits_of_all)
    unsplit = {
        UNSPLIT.get(each.kind, each.kind)
        for one in job.communicators
        for each in one.operations
        if not each.is_split and one.ranks > 1
    }
    steps = "steps, " if steps_of(job.repeated) is None else "step times, "
    found = [
        f"the logs hold no {steps}phases or compute, so exposed communication is not known; calls "
        "below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192 unless set) are not logged"
    ]
    if lost:
        little = "little" if math.isnan(least_late_s) else f"less than {least_late_s:.3g} s in all"
        rings = f". Full ring buffers dropped at least {dropped} records" if dropped else ""
        found.append(
            f"{counted(lost, 'record')} are missing{_by_loss(job)}, although other ranks recorded "
            f"the same calls{rings}. So the true waiting may be longer than shown, and a process "
            f"that is late by {little} may be missed. A larger NCCL_INSPECTOR_DUMP_COLL_RING_SIZE "
            "or a shorter dump interval keeps more records"
        )
    gaps = sum(waits.missing_calls for waits in waits_of_all)
    if gaps:
        found.append(
            f"{counted(gaps, 'call')} {'is' if gaps == 1 else 'are'} in no log: the numbers in "
            "coll_sn have gaps that are the same on all ranks"
        )
    for number, noun, what in (
        (untimed, "record", "without a time of the GPU's clock"),
        (unmatched, "record", "of messages or replayed graphs without a match on another rank"),
        (sizes, "call", "for which ranks recorded different sizes"),
    ):
        if number:
            found.append(f"left out: {counted(number, noun)} {what}")
    if unsplit:
        kinds = " and ".join(sorted(unsplit))
        found.append(
            f"it is not known for whom a rank waits in {kinds}, because the logs do not name the "
            "root"
        )
    waited_us = float(traced.waited_us.sum())
    nobodys = 1 - float(traced.began_us.sum()) / waited_us if waited_us > 0 else 0.0
    if nobodys >= _NEGLIGIBLE:
        found.append(
            f"{nobodys:.0%} of the waiting is for processes that had waited themselves, but the "
            "logs do not show for which process they had waited. This part of the waiting counts "
            "for no process"
        )
    if logs.empty:
        found.append(
            f"the logs of {len(logs.empty)} processes are empty: without "
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS nothing is written before the "
            "communicator ends"
        )
    return found
