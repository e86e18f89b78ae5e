"""Decides which figures the recordings of one world size support: a figure needs evidence.

This module is the only place with such rules. :mod:`commprof.analysis.world` replaces each
unsupported figure by NaN or None, or leaves it out. All outputs about a run (verdict, card,
remarks, advice, incidents, pages, exports) ask :class:`Evidence`. An unsupported figure is printed
as "-" and exported as null, with the reason that :meth:`Evidence.lacking` returns, and no verdict
rests on it.

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
#: A rank stands out if it caused this share of all waiting, even if no test over the steps names
#: it.
_STANDS_OUT = 2 / 3


class Figure(Enum):
    """A figure, or a kind of statement, that needs evidence."""

    #: Time of a step.
    STEP = "step"
    #: Compute, data, optimizer and other time of a step.
    PARTS = "parts"
    #: The statement that "other" is time outside of forward, backward and optimizer.
    OTHER = "other"
    #: Time for which communication delays the step, and all that follows from it.
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
    #: Time that a change would save, found by replaying the recorded steps with this change.
    GAINS = "gains"


def _ran_on_device(trace: Trace) -> bool:
    """True if commprof recorded collectives that ran on a device."""
    return not trace.is_foreign and device_collectives(trace) > 0


@dataclass(frozen=True)
class RecordedKinds(FieldGroup):
    """Which kinds of data were recorded at all."""

    #: False if the times of a transfer were not recorded, but only the calls on the host.
    times: bool
    #: True if kernels or copies of a device were recorded on all ranks.
    device: bool
    #: False if nothing of the training thread was recorded except its collectives.
    training_thread: bool
    #: False if the recording of some rank's device holds only communication kernels, while
    #: recordings of other ranks' devices also hold compute kernels.
    work: bool
    #: False if capture in pure Python saw no collective.
    collectives: bool
    #: True if forward passes were recorded.
    forward: bool
    #: False if nothing tells how many ranks the job has.
    job_size: bool = True
    #: True if events of a device were recorded that commprof does not read.
    unread_device: bool = False


@dataclass(frozen=True)
class DeviceTiming(FieldGroup):
    """Facts on whether device events timed the collectives that ran on a device."""

    #: False if some rank's collectives ran on a device and no device event timed any of them.
    on_all_ranks: bool
    #: True if collectives ran on a device, no device event timed any of them, and the host waited
    #: for less than ``WORTH_A_LOOK`` of the step.
    unseen: bool
    #: Why capture recorded no device times; "" if it did, or if the reason is not known.
    why_none: str


@dataclass(frozen=True)
class KnownSplit(FieldGroup):
    """Facts on how far the exposed time is split into waiting and transfer."""

    #: Mean exposed time per step; the next field is the part of it that is not split.
    exposed_ms: float
    unsplit_ms: float
    #: False if the exposed time of no step is split.
    waiting_known: bool


@dataclass(frozen=True)
class LostRecords(FieldGroup):
    """Records and calls that are missing from recordings."""

    #: Largest fraction of a rank's records that were lost because a buffer was full.
    records_share: float = 0.0
    #: The rank whose recording lacks the most of the calls that other ranks recorded in the same
    #: groups. The next field is the fraction of these calls that it lacks; 0 for commprof's own
    #: traces.
    poorest_rank: int = -1
    calls_share: float = 0.0


@dataclass(frozen=True)
class MostWaitedFor(FieldGroup):
    """The rank that caused most waiting, even if no test calls it late."""

    #: -1 if unknown.
    rank: int = -1
    #: Fraction of all waiting; NaN if unknown.
    share: float = math.nan
    #: If the steps are too few to name a late rank: a clause that says so, and how many steps would
    #: suffice. Else empty.
    few_steps: str = ""
    #: If the rank was late in one series of steps only: a clause on this series. Else empty.
    one_series: str = ""


@dataclass(frozen=True)
class Evidence:
    """Facts about the recordings of one world size, and the rules on its figures."""

    world_size: int
    #: Ranks that left no usable trace.
    missing_ranks: tuple[int, ...]
    #: True if the ranks' times can be compared.
    clocks_shared: bool
    #: False if no step is marked: then each repetition of the calls counts as a step. Several
    #: repetitions may be one step of the job, so that they are not independent.
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
        """What the recordings lack for each figure without evidence, by the figure's name."""
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
            return f"{caused}, and {_no_steps(self)}, so that this may be chance"
        if most.few_steps:
            return f"{caused}, but {most.few_steps}"
        if most.one_series:
            return f"{caused}, nearly all in one series of steps, {most.one_series}"
        return f"{caused}, which the recorded steps do not show to be more than chance"

    @property
    def remedy(self) -> tuple[str, str]:
        """Advice on how to record so that exposed time is known, and a command ("" for none)."""
        if not self.recorded.times and self.recorded.device:
            return (
                "First find out why no kernel of communication was recorded: the profiler may have "
                "lost the kernels, or copies may have moved the data instead.",
                "",
            )
        if not self.recorded.times and self.recorded.unread_device:
            return (
                "First look at the device's own events in the program that wrote them: the report "
                "does not read them, and a new recording would not change that.",
                "",
            )
        if not self.recorded.times:
            return (
                "First record again with the activity of the device too, for example "
                "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]): "
                "only kernels tell how long transfers take.",
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
                "First repeat the run with room for its records, in /dev/shm and on the disk of "
                "the run directory: no figure counts communication that was not recorded.",
                "",
            )
        if _lacking_calls_of(self):
            return (
                "First record again, on all ranks with the same settings and for the same steps.",
                "",
            )
        if _no_collectives(self):
            return (
                "First make commprof's C++ module available, and repeat the run: without it the "
                "communication of this job is not seen. This command says what is missing:",
                invocation.command("check"),
            )
        if self.device_timing.why_none:
            return (
                "First make device events available, and repeat the run: without them nobody knows "
                f"how long the GPUs waited for collectives. Reason: {self.device_timing.why_none}.",
                "",
            )
        return (
            "First repeat the run with collectives outside of CUDA graphs. In this run, GPU "
            "waiting was not measured for any collective, because all collectives were captured "
            "into a graph or their device events were lost.",
            "",
        )


def evidence_of(seen: MeasuredWorld) -> Evidence:
    """Examines which data the recordings of one world size hold."""
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
    """Returns the rank whose recording lacks the most calls, and the fraction that it lacks.

    These are ``LostRecords.poorest_rank`` and ``calls_share``, over the measured steps.

    In a job with groups smaller than the world, only collectives in which all ranks take part are
    compared, and only between ranks whose groups were recorded: in smaller groups, ranks may
    rightly make different numbers of calls.
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
    """Returns the first reason that a rank gives for missing device times; empty if none does."""
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
            "host do not show when their collectives ran"
        )
    return (
        "no kernel of a device was recorded, and calls on the host do not show when their "
        "collectives ran"
    )


def _no_device(of: Evidence) -> str:
    return "" if of.recorded.device else _no_kernels(of)


def _no_operators(of: Evidence) -> str:
    return "" if of.recorded.training_thread else "no operator of the training thread was recorded"


def _no_work(of: Evidence) -> str:
    return (
        ""
        if of.recorded.work
        else "a device's kernels of communication were recorded, but no others"
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
#: The requirements of each figure. If several are not met, the first one is given as the reason.
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
