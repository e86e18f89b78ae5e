"""Decides which figures the recordings of one world size support: a figure needs evidence.

All outputs about a run ask :class:`Evidence`, and no other module has such rules.
:mod:`commprof.analysis.world` replaces unsupported figures by NaN or None. They are printed as "-"
and exported as null, and :meth:`Evidence.lacking` gives the reason.

A figure without evidence differs from a figure of 0: a recording without kernels does not show that
transfers took no time, and a recording of one rank does not show that no rank was late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from commprof import invocation
from commprof.analysis.align.device_timeline import device_collectives, timed_collectives
from commprof.analysis.step.breakdown import WORTH_A_LOOK
from commprof.analysis.step.measured import MeasuredWorld
from commprof.analysis.step.waiting import NOT_SPLIT, is_split
from commprof.field_groups import FieldGroup
from commprof.text import named_ranks
from commprof.trace import columns
from commprof.trace.lookup import among, is_in, row_containing
from commprof.trace.reader import Trace
from commprof.trace.schema import POINT_TO_POINT
from commprof.units import ns_to_ms

#: If a rank lost up to this fraction of its records, the figures hardly change.
_FEW = 0.01
#: If a rank's recording lacks up to this fraction of the collectives that other ranks recorded, the
#: figures hardly change.
_SOME = 0.1
#: A rank is called late only if at least this fraction of the exposed time is split into waiting
#: and transfer.
_HALF = 0.5
#: A rank stands out if it caused at least this share of all waiting.
_STANDS_OUT = 2 / 3


class Figure(Enum):
    """A figure, or a kind of statement, that needs evidence."""

    STEP = "step"
    #: Compute, data, optimizer and other time of a step.
    PARTS = "parts"
    #: The statement that "other" is time outside of forward, backward and optimizer.
    OTHER = "other"
    #: Time for which communication delays the step, and figures computed from this time.
    EXPOSED = "exposed"
    #: Durations and bandwidths of collectives.
    CALLS = "calls"
    #: Split of exposed time into waiting and transfer, and the rank that the others wait for.
    SPLIT = "split"
    #: The statement that communication needs no change.
    NO_CHANGE = "no_change"
    #: The statement that one rank is late.
    LATE = "late"
    #: The statement that the speed changed lastingly during the recording.
    CHANGE = "change"
    #: The statement that no single rank is late.
    NOBODY_LATE = "nobody_late"
    #: Time that a change of the job would save, computed by replaying the recorded steps.
    GAINS = "gains"


def _ran_on_device(trace: Trace) -> bool:
    return not trace.is_foreign and device_collectives(trace) > 0


@dataclass(frozen=True)
class RecordedKinds(FieldGroup):
    """Tells which kinds of data were recorded."""

    #: False if, of some call, only its time on the host was recorded, without the transfer's times.
    times: bool
    #: True if another profiler recorded kernels or copies of a device on all ranks. Always False
    #: for commprof's own traces.
    device: bool
    #: False if only the collectives of the training thread were recorded.
    training_thread: bool
    #: False if only communication kernels were recorded on the devices of some ranks. True if this
    #: holds for all ranks.
    work: bool
    #: False if capture in pure Python recorded no collective.
    collectives: bool
    forward: bool
    #: False if the number of ranks of the job is not known.
    job_size: bool = True
    #: True if the recordings hold device events that commprof does not read.
    unread_device: bool = False


@dataclass(frozen=True)
class DeviceTiming(FieldGroup):
    """Facts on whether device events timed the collectives that ran on a device."""

    #: False if a rank ran collectives on a device, and device events timed none of these calls.
    on_all_ranks: bool
    #: True if device events timed none of the collectives on devices, and exposed time is below
    #: ``WORTH_A_LOOK`` of the step.
    unseen: bool
    #: Reason why capture recorded no device times. Empty if no reason is known.
    why_none: str


@dataclass(frozen=True)
class KnownSplit(FieldGroup):
    """Facts on how far the exposed time is split into waiting and transfer."""

    #: Mean exposed time per step.
    exposed_ms: float
    #: Part of ``exposed_ms`` that is not split.
    unsplit_ms: float
    #: True if the exposed time of at least one step is split.
    waiting_known: bool


@dataclass(frozen=True)
class LostRecords(FieldGroup):
    """Records and calls that are missing from recordings."""

    #: Fraction of its records that a rank lost because a buffer was full; the largest of all ranks.
    records_share: float = 0.0
    #: Rank whose recording lacks the most calls; -1 if unknown.
    poorest_rank: int = -1
    #: Fraction of the calls that this recording lacks; 0 for commprof's own traces.
    calls_share: float = 0.0


@dataclass(frozen=True)
class MostWaitedFor(FieldGroup):
    """The rank that caused most waiting, even if no test calls it late."""

    #: -1 if unknown.
    rank: int = -1
    #: Fraction of all waiting; NaN if unknown.
    share: float = math.nan
    #: Clause saying that the steps are too few to name a late rank; else empty.
    few_steps: str = ""
    #: Range of the steps in which the rank was late, in words; empty unless it is one series.
    one_series: str = ""


@dataclass(frozen=True)
class Evidence:
    """Facts about the recordings of one world size, and the figures that they support."""

    world_size: int
    missing_ranks: tuple[int, ...]
    clocks_shared: bool
    #: False if no step is marked. Then each repetition of the calls counts as a step, although
    #: several repetitions may belong to one step of the job.
    steps_marked: bool
    recorded: RecordedKinds
    device_timing: DeviceTiming
    split: KnownSplit
    lost: LostRecords
    most_waited_for: MostWaitedFor = MostWaitedFor()

    def lacking(self, figure: Figure) -> str:
        """Returns what the recordings lack for a figure, as a clause; empty if it is supported."""
        for need in _NEEDS[figure]:
            if said := need(self):
                return said
        return ""

    def supports(self, figure: Figure) -> bool:
        """True if the recordings hold all that the figure needs."""
        return not self.lacking(figure)

    @property
    def not_known(self) -> Mapping[str, str]:
        """What the recordings lack, by the name of each unsupported figure."""
        return {each.value: said for each in Figure if (said := self.lacking(each))}

    @property
    def stands_out(self) -> str:
        """Clause on the rank that caused most waiting; empty if its share is below ``_STANDS_OUT``.

        Only for use if no test names this rank as late.
        """
        most = self.most_waited_for
        if not most.share >= _STANDS_OUT:
            return ""
        caused = f"rank {most.rank} caused {most.share:.0%} of the waiting"
        if not self.steps_marked:
            return f"{caused}, but this may be chance, because {_no_steps(self)}"
        if most.few_steps:
            return f"{caused}, but {most.few_steps}"
        if most.one_series:
            return f"{caused}, nearly all of it {most.one_series}"
        return f"{caused}, but this may be chance"

    @property
    def remedy(self) -> tuple[str, str]:
        """Advice on how to record so that exposed time is known, and a command ("" for none)."""
        if not self.recorded.times and self.recorded.device:
            return (
                "First find out why no communication kernel was recorded: the profiler may have "
                "lost the kernels, or copies may have moved the data instead.",
                "",
            )
        if not self.recorded.times and self.recorded.unread_device:
            return (
                "First look at the device's events in the program that recorded them. commprof "
                "does not read such events, so a new recording would not help.",
                "",
            )
        if not self.recorded.times:
            return (
                "First record again with the activity of the device too, for example "
                "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]): "
                "only kernels show how long transfers take.",
                "",
            )
        if not self.recorded.work:
            return (
                "First record again with all kernels of the device: without compute kernels, "
                "it is not known which communication was hidden.",
                "",
            )
        if not self.recorded.training_thread:
            return (
                "First record again with the operators of the training thread: start "
                "torch.profiler in the thread that trains, with ProfilerActivity.CPU.",
                "",
            )
        if _lost_records(self):
            return (
                "First repeat the run with more free space, in /dev/shm and on the disk of the "
                "run directory: the figures leave out communication that was not recorded.",
                "",
            )
        if _lacking_calls_of(self):
            return (
                "First record again, on all ranks with the same settings and for the same steps.",
                "",
            )
        if _no_collectives(self):
            return (
                "First make commprof's C++ module available, and repeat the run: without the "
                "module, commprof cannot record the communication of this job. This command shows "
                "what is missing:",
                invocation.command("check"),
            )
        if self.device_timing.why_none:
            return (
                "First make device events available, and repeat the run: without such events, it "
                "is not known how long the GPUs waited for collectives. Reason: "
                f"{self.device_timing.why_none}.",
                "",
            )
        return (
            "First repeat the run with collectives outside of CUDA graphs. In this run, GPU "
            "waiting was not measured for any collective, because all collectives were captured "
            "into a graph or their device events were lost.",
            "",
        )


def evidence_of(seen: MeasuredWorld) -> Evidence:
    """Returns the evidence that the recordings of one world size hold."""
    traces, world_size = seen.recorded, seen.recorded[0].world_size
    exposed_ms, unsplit_ms, step_ms = (
        ns_to_ms(sum(seen.measured.sums(name)))
        / max(1, len(seen.measured) * len(seen.measured.step))
        for name in ("exposed", "unsplit", "wall")
    )
    missing = sorted(set(range(world_size)).difference(seen.ranks))
    facts = [trace.recorded for trace in traces if trace.recorded is not None]
    by_python = all(trace.metadata.get("capture") == "python" for trace in traces)
    on_device = list(filter(_ran_on_device, traces))
    timed = list(map(timed_collectives, on_device))
    return Evidence(
        world_size=world_size,
        missing_ranks=tuple(missing),
        clocks_shared=seen.clocks_shared,
        steps_marked=all(each.steps_marked for each in facts),
        recorded=RecordedKinds(
            times=all(each.times.all() for each in facts),
            device=bool(facts) and all(each.device for each in facts),
            training_thread=all(each.device or each.training_thread for each in facts)
            and not any(trace.is_of_nccl for trace in traces),
            # If all ranks have only communication kernels, as in a benchmark of communication, no
            # work is missing.
            work=not any(map(_lacks_work, traces)) or all(map(_lacks_work, traces)),
            collectives=not by_python or world_size < 2 or any(map(len, seen.tables)),
            forward=any(total_ns > 0 for total_ns in seen.measured.sums("forward")),
            job_size=all(rank.job_size for rank in facts),
            unread_device=any(rank.unread_device for rank in facts),
        ),
        device_timing=DeviceTiming(
            on_all_ranks=all(timed),
            unseen=bool(timed) and not any(timed) and exposed_ms < WORTH_A_LOOK * step_ms,
            why_none=_why_no_device_times(traces),
        ),
        split=KnownSplit(
            exposed_ms=exposed_ms,
            unsplit_ms=unsplit_ms,
            waiting_known=not np.isnan(
                seen.measured.table("wait")[seen.measured.table("exposed") > 0]
            ).all(),
        ),
        lost=LostRecords(max(map(_lost_share, seen.all_steps.recorded)), *_lacking_calls(seen)),
    )


def _lacking_calls(seen: MeasuredWorld) -> tuple[int, float]:
    """Returns ``LostRecords.poorest_rank`` and ``calls_share``.

    In groups smaller than the world, ranks may rightly make different numbers of calls. A job with
    such groups is judged only by its collectives of all ranks, and only by ranks whose groups were
    recorded.
    """
    if len(seen.traces) < 2 or not any(trace.is_foreign for trace in seen.recorded):
        return -1, 0.0
    world_size = seen.recorded[0].world_size
    sizes = [{group.size for group in trace.groups.values()} for trace in seen.traces]
    has_small = any(size not in (0, world_size) for found in sizes for size in found)
    counts: list[tuple[int, int]] = []
    for place, (trace, table) in enumerate(zip(seen.traces, seen.tables, strict=True)):
        if has_small and (0 in sizes[place] or not sizes[place]):
            continue
        steps = columns.steps(trace)
        chosen = is_in(steps.index, seen.measured.step)
        inside = row_containing(steps.begin_ns[chosen], steps.end_ns[chosen], table.issue_ns) >= 0
        mine = inside & ~among(table.op, *POINT_TO_POINT)
        if has_small:
            whole = [group.id for group in trace.groups.values() if group.size == world_size]
            mine &= np.isin(table.group, whole)
        counts.append((int(mine.sum()), seen.ranks[place]))
    if len(counts) < 2 or not max(counts)[0]:
        return -1, 0.0
    least, poorest = min(counts)
    return poorest, 1 - least / max(counts)[0]


def _lacks_work(trace: Trace) -> bool:
    activity = trace.device_activity
    if activity is None or activity.communication is None:
        return False
    return len(activity.communication) > 0 and len(activity.compute) == 0


def _lost_share(trace: Trace) -> float:
    return trace.dropped / max(1, trace.dropped + len(trace.records))


def _why_no_device_times(traces: Sequence[Trace]) -> str:
    reasons = (trace.metadata.get("no_device_times", "") for trace in traces)
    return next((reason for reason in reasons if isinstance(reason, str) and reason), "")


def _no_kernels(of: Evidence) -> str:
    if of.recorded.times:
        return ""
    if of.recorded.device:
        return "c10d called collectives, but no kernel of communication was recorded for them"
    if of.recorded.unread_device:
        return (
            "commprof does not read the events that show what the device did, and calls on the "
            "host do not show when collectives ran"
        )
    return (
        "no kernel of a device was recorded, and calls on the host do not show when collectives ran"
    )


def _no_device(of: Evidence) -> str:
    return "" if of.recorded.device else _no_kernels(of)


def _no_operators(of: Evidence) -> str:
    return "" if of.recorded.training_thread else "no operator of the training thread was recorded"


def _no_work(of: Evidence) -> str:
    return (
        ""
        if of.recorded.work
        else "a device's communication kernels were recorded, but no compute kernels"
    )


def _no_steps(of: Evidence) -> str:
    return "" if of.steps_marked else "no step is marked"


def _no_collectives(of: Evidence) -> str:
    return "" if of.recorded.collectives else "the capture saw no communication"


def _no_device_times(of: Evidence) -> str:
    return (
        "the capture saw no communication" if of.device_timing.unseen and of.world_size > 1 else ""
    )


def _a_rank_untimed(of: Evidence) -> str:
    return (
        ""
        if of.device_timing.on_all_ranks
        else "a rank has collectives on a device, but no device event timed any of them"
    )


def _lost_records(of: Evidence) -> str:
    if of.lost.records_share <= _FEW:
        return ""
    return were_dropped(f"{of.lost.records_share:.0%} of a rank's records")


def were_dropped(records: str) -> str:
    """Returns a clause saying that these records were dropped."""
    return f"{records} were dropped because a buffer was full"


def _lacking_calls_of(of: Evidence) -> str:
    lost = of.lost
    if lost.calls_share <= _SOME:
        return ""
    return (
        f"the recording of rank {lost.poorest_rank} lacks {lost.calls_share:.0%} of the "
        "collectives that other ranks recorded"
    )


def _no_forward(of: Evidence) -> str:
    return "" if of.recorded.forward else "no forward pass was seen"


def _no_clock(of: Evidence) -> str:
    return "" if of.clocks_shared else "the ranks' clocks were not compared"


def _no_ranks(of: Evidence) -> str:
    if not of.recorded.job_size:
        return "the recording does not say how many ranks the job has"
    return no_trace_from(of.missing_ranks)


def no_trace_from(missing_ranks: Sequence[int]) -> str:
    """Returns a clause on the ranks that left no usable trace; empty if all left one."""
    return f"no usable trace came from {named_ranks(missing_ranks)}" if missing_ranks else ""


def _no_waiting(of: Evidence) -> str:
    if of.world_size < 2 and of.recorded.job_size:
        return "there is only one rank"
    if not of.split.exposed_ms > 0:
        return "no rank waited"
    return "" if of.split.waiting_known else "no collective was seen on all ranks of its group"


def _not_split(of: Evidence) -> str:
    if is_split(of.split.exposed_ms, of.split.unsplit_ms):
        return ""
    return f"much {NOT_SPLIT}"


def _mostly_unsplit(of: Evidence) -> str:
    if of.split.unsplit_ms <= _HALF * of.split.exposed_ms:
        return ""
    return f"most {NOT_SPLIT}"


def _stands_out(of: Evidence) -> str:
    return of.stands_out


_DEVICE = (_no_kernels, _no_operators, _no_work)
_SEEN = (*_DEVICE, _lacking_calls_of, _no_collectives, _no_device_times, _lost_records)
#: The requirements of each figure. The first unmet requirement is given as the reason.
_NEEDS: Mapping[Figure, Sequence[Callable[[Evidence], str]]] = {
    Figure.STEP: (),
    Figure.PARTS: (_no_device, _no_operators, _no_work),
    Figure.OTHER: (_no_device, _no_operators, _no_work, _no_forward),
    Figure.EXPOSED: _SEEN,
    Figure.NO_CHANGE: (*_SEEN, _no_ranks),
    Figure.CALLS: (_no_kernels,),
    Figure.SPLIT: (*_SEEN, _no_clock),
    Figure.LATE: (*_SEEN, _no_clock, _mostly_unsplit, _no_steps),
    Figure.CHANGE: (_no_steps,),
    Figure.NOBODY_LATE: (
        *(*_SEEN, _no_clock, _no_ranks, _no_waiting, _not_split, _stands_out, _no_steps),
    ),
    Figure.GAINS: (*_SEEN, _a_rank_untimed, _no_clock, _no_ranks, _not_split),
}
