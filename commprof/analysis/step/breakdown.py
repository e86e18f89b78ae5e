"""Splits each step of one rank into parts, which add up to the step exactly.

    step = data + forward + backward + exposed + optimizer + other
    exposed = wait + transfer + unsplit

The time of a phase is the time that the training thread spent in the phase without waiting for
communication; ``other`` is the remainder of the step. In exposed time, communication blocks the
training thread. Exposed time is ``wait`` until the last rank arrives, and ``transfer`` after that.
Exposed time is ``unsplit`` if the last arrival is unknown. Hidden communication overlaps these
parts and is not part of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals
from commprof.analysis.step.device_times import device_times
from commprof.analysis.step.exposure import (
    CAUSES,
    NO_CORE,
    UNKNOWN,
    ExposedSpread,
    Exposures,
    exposures_of,
    host_counts,
    own_run_delay,
    pauses,
    run_delay,
)
from commprof.analysis.step.origins import Origins
from commprof.analysis.step.waiting import Waiting, not_split, split
from commprof.field_groups import FieldGroup
from commprof.trace import columns
from commprof.trace.columns import Collectives, Finalizations, Ints, Spans, Steps
from commprof.trace.lookup import distinct_rows, map_columns, row_containing, rows_of
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES, Phase
from commprof.trace.stretches import Stretches, covered, outside, stretches, within

Floats = npt.NDArray[np.float64]

#: A part below this fraction of a step is not worth optimising.
WORTH_A_LOOK = 0.10


@dataclass(frozen=True)
class Caused:
    """Waiting of one rank, split by step, and by the rank and activity that caused the waiting.

    Zeros are left out, because a full table would be large.
    """

    #: Row of the step in ``Breakdown``.
    step: npt.NDArray[np.int32]
    #: Global rank that is the root cause of the wait; not the rank that waited.
    rank: npt.NDArray[np.int32]
    #: Activity of the root-cause rank that caused the wait, as an index into ``exposure.CAUSES``.
    cause: npt.NDArray[np.int8]
    wait_ns: Floats
    steps: int
    world_size: int

    def __getitem__(self, rows: slice | Ints) -> Caused:
        """Returns only some of the steps; ``rows`` must be ascending."""
        chosen = np.arange(self.steps)[rows]
        row = np.full(self.steps, -1, dtype=np.int32)
        row[chosen] = np.arange(len(chosen))
        kept = row[self.step] >= 0
        return Caused(
            row[self.step[kept]],
            self.rank[kept],
            self.cause[kept],
            self.wait_ns[kept],
            len(chosen),
            self.world_size,
        )

    def between(self, begin: int, end: int) -> Caused:
        """Returns the steps in rows ``begin`` to ``end``; ``step`` must be ascending."""
        rows = slice(*np.searchsorted(self.step, (begin, end)).tolist())
        step = self.step[rows] - np.int32(begin)
        parts = step, self.rank[rows], self.cause[rows], self.wait_ns[rows]
        return Caused(*parts, end - begin, self.world_size)

    @classmethod
    def joined(cls, parts: Sequence[Caused]) -> Caused:
        """Joins steps that follow one another."""
        first = np.cumsum([0, *(part.steps for part in parts)])
        number = np.int32 if first[-1] < 2**31 else np.int64
        step = [part.step + number(at) for part, at in zip(parts, first[:-1], strict=True)]
        return cls(
            np.concatenate(step),
            np.concatenate([part.rank for part in parts]),
            np.concatenate([part.cause for part in parts]),
            np.concatenate([part.wait_ns for part in parts]),
            int(first[-1]),
            parts[0].world_size,
        )

    def add_to(self, total_ns: Floats) -> None:
        """Adds all parts to an array ``[step, rank, cause]``."""
        np.add.at(total_ns, (self.step, self.rank, self.cause), self.wait_ns)

    def by_rank_ns(self, without: str | None = None) -> Floats:
        """Returns the waiting by root-cause rank; waiting of cause ``without`` is left out."""
        kept = slice(None) if without is None else self.cause != CAUSES.index(without)
        return np.bincount(
            self.rank[kept], weights=self.wait_ns[kept], minlength=self.world_size
        ).astype(np.float64)

    def for_rank_ns(self, rank: int, without: str) -> Floats:
        """Returns the waiting by step that ``rank`` caused; cause ``without`` is left out."""
        kept = (self.rank == rank) & (self.cause != CAUSES.index(without))
        return np.bincount(
            self.step[kept], weights=self.wait_ns[kept], minlength=self.steps
        ).astype(np.float64)

    def of_cause_ns(self, cause: str) -> Floats:
        """Returns the waiting of one cause by step."""
        kept = self.cause == CAUSES.index(cause)
        return np.bincount(
            self.step[kept], weights=self.wait_ns[kept], minlength=self.steps
        ).astype(np.float64)


@dataclass(frozen=True)
class WorkTimes(FieldGroup):
    """Time of the training thread in each phase, without waiting, in nanoseconds."""

    data_ns: Floats
    forward_ns: Floats
    backward_ns: Floats
    optimizer_ns: Floats
    other_ns: Floats


@dataclass(frozen=True)
class OtherOnDevice(FieldGroup):
    """Splits ``WorkTimes.other_ns`` by what the device did; NaN if no kernels were recorded."""

    #: Time of kernels that were launched in no known phase.
    unphased_compute_ns: Floats
    copies_ns: Floats
    idle_ns: Floats


@dataclass(frozen=True)
class HostDelays(FieldGroup):
    """Time that the training thread lost to the host, as ``[step, phase]`` in order of PHASES."""

    #: Time in each phase, outside of waiting, in which the process did not run.
    paused_ns: Floats
    #: Time in which the training thread could run but had no core.
    run_delay_ns: Floats
    #: Part of ``run_delay_ns`` that other threads of the rank's process may have caused.
    own_run_delay_ns: Floats
    #: ``[step, phase, counter]``: increases of the Linux kernel's counters for the training thread,
    #: in the order of ``columns.HOST_COUNTS``.
    counts: Floats


@dataclass(frozen=True)
class Breakdown:
    """Parts of the steps of one rank, one row per step; times in nanoseconds.

    For several ranks (:mod:`commprof.analysis.step.rank_parts`), each column has a first axis for
    the ranks: ``[rank, step, ...]``.
    """

    step: Ints
    wall_ns: Floats
    work: WorkTimes
    on_device: OtherOnDevice
    #: Time for which communication blocked the training thread.
    exposed_ns: Floats
    #: Exposed time before the last rank had arrived; NaN if all of the exposed time is unsplit.
    wait_ns: Floats
    #: Exposed time after the last rank had arrived; NaN if all of the exposed time is unsplit.
    transfer_ns: Floats
    #: Exposed time of operations whose last arrival is not known.
    unsplit_ns: Floats
    #: Time in which the training thread lacked a core at the end of backward passes, where DDP
    #: waits for its buckets; NaN if not recorded.
    no_core_ns: Floats
    #: Time in which communication was in flight and did not block the training thread.
    hidden_ns: Floats
    #: Time in which at least one collective was issued and not yet complete.
    in_flight_ns: Floats
    host: HostDelays
    #: Waiting of this rank by its root causes, see :mod:`analysis.step.origins`; empty if arrivals
    #: are unknown.
    caused: Caused

    def part_ns(self, name: str) -> Floats:
        """Returns the part with this name, such as "forward", "copies", "wait" or "wall"."""
        column = f"{name}_ns"
        for group in (self.work, self.on_device):
            if hasattr(group, column):
                return getattr(group, column)
        return getattr(self, column)

    @property
    def caused_ns(self) -> Floats:
        """All of ``caused`` as a table ``[step, rank, cause]``."""
        total = np.zeros((len(self.step), self.caused.world_size, len(CAUSES)))
        self.caused.add_to(total)
        return total

    @property
    def waited_for_ns(self) -> Floats:
        """Waiting of this rank as ``[step, rank]``: ``rank`` is the root cause of the wait."""
        total: Floats = self.caused_ns.sum(axis=2)
        return total

    @property
    def with_cores_ns(self) -> Floats:
        """Step time minus this rank's run delay, and minus the waiting that run delay caused."""
        waited = self.caused.of_cause_ns(NO_CORE).reshape(self.wall_ns.shape)
        left: Floats = self.wall_ns - self.host.run_delay_ns.sum(axis=-1) - waited
        return left

    @property
    def work_ns(self) -> Floats:
        """Time without waiting, as ``[phase, step]`` in the order of ``schema.PHASES``."""
        return np.stack([self.part_ns(phase) for phase in PHASES], axis=-2)

    @property
    def by_origin_ns(self) -> Floats:
        """Own work and pauses as ``[origin, step]``, in the order of ``exposure.ORIGINS``.

        Run delay is left out, because the rank does no work then.
        """
        paused = np.swapaxes(self.host.paused_ns, -1, -2)
        work = self.work_ns - paused - np.swapaxes(self.host.run_delay_ns, -1, -2)
        return np.concatenate((work, paused.sum(axis=-2, keepdims=True)), axis=-2)

    def rows(self, chosen: npt.NDArray[np.bool_]) -> Breakdown:
        """Returns only the chosen steps; values are not copied if the steps are consecutive."""
        at = np.flatnonzero(chosen)
        if len(at) == len(chosen):
            return self
        if len(at) > 0 and at[-1] - at[0] == len(at) - 1:
            return self._between(int(at[0]), int(at[-1]) + 1)
        return rows_of(self, at)

    def _between(self, begin: int, end: int) -> Breakdown:
        return map_columns(
            lambda column: (
                column.between(begin, end) if isinstance(column, Caused) else column[begin:end]
            ),
            self,
        )


def breakdown(
    trace: Trace,
    table: Collectives,
    arrivals: Arrivals | None,
    world_size: int,
    origins: Origins | None = None,
) -> Breakdown:
    """Splits every complete step of one rank into its parts.

    Args:
        trace: the rank's trace.
        table: the rank's collectives.
        arrivals: arrivals of these collectives; None if the ranks' clocks cannot be compared.
        world_size: number of ranks.
        origins: root causes of the rank's waits. If None, the rank that arrived last is the cause
            of each wait.
    """
    exposed = exposures_of(trace)
    if origins is not None:
        waiting = origins.waiting
    else:
        waiting = not_split(exposed) if arrivals is None else split(exposed, table, arrivals)
    return of_split(trace, table, waiting, world_size, origins)


def of_split(
    trace: Trace,
    table: Collectives,
    waiting: Waiting,
    world_size: int,
    origins: Origins | None = None,
) -> Breakdown:
    """Like :func:`breakdown`, for exposures that are already split.

    ``waiting`` is the split of ``exposures_of(trace)`` into waiting and transfer. For the trace of
    a block of ranks (:mod:`commprof.analysis.step.joined`), the result has the steps of all its
    ranks.
    """
    steps = columns.steps(trace)
    thread = int(steps.thread[0]) if len(steps) else 0
    finalizations = columns.finalizations(trace)
    exposed = exposures_of(trace)
    exposed_step = _step_of(steps, exposed.begin_ns)
    wall = (steps.end_ns - steps.begin_ns).astype(np.float64)
    phases = columns.phases(trace)
    phase_ns = _phase_times(steps, phases, thread) - _exposed_by_phase(
        steps, phases, exposed, exposed_step, thread
    )
    exposed_ns = _sum_by_step(steps, exposed_step, exposed.waited_ns)
    unsplit = _sum_by_step(
        steps, exposed_step, np.where(np.isnan(waiting.wait_ns), exposed.waited_ns, 0.0)
    )
    if origins is None:
        unknown = np.full(len(exposed), CAUSES.index(UNKNOWN))
        rows = np.arange(len(exposed))
        origins = Origins(rows, waiting.culprit, unknown, waiting.wait_ns, waiting)
    known_wait = np.nan_to_num(waiting.wait_ns, nan=0.0)
    wait = _sum_by_step(steps, exposed_step, known_wait)
    nothing_known = (exposed_ns > 0) & (unsplit >= exposed_ns)
    named = {
        phase: phase_ns[:, phase]
        for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    }
    other_ns = wall - exposed_ns - sum(named.values())
    in_flight = in_flight_ns(steps, table)
    return Breakdown(
        step=steps.index,
        wall_ns=wall,
        work=WorkTimes(
            data_ns=named[Phase.DATA],
            forward_ns=named[Phase.FORWARD],
            backward_ns=named[Phase.BACKWARD],
            optimizer_ns=named[Phase.OPTIMIZER],
            other_ns=other_ns,
        ),
        on_device=_of_other(trace, steps, other_ns, wall - exposed_ns - other_ns),
        exposed_ns=exposed_ns,
        wait_ns=np.where(nothing_known, np.nan, wait),
        transfer_ns=np.where(nothing_known, np.nan, exposed_ns - wait - unsplit),
        unsplit_ns=unsplit,
        no_core_ns=_no_core(steps, finalizations, thread),
        hidden_ns=np.maximum(0.0, _running_ns(trace, in_flight) - exposed_ns),
        in_flight_ns=in_flight,
        host=_host_delays(trace, steps, exposed, thread),
        caused=_by_origin(steps, exposed_step, origins, world_size),
    )


def _host_delays(trace: Trace, steps: Steps, exposed: Exposures, thread: int) -> HostDelays:
    phases = columns.phases(trace)
    counts = list(host_counts(trace, exposed, thread).values())
    by_phase: Floats = np.broadcast_to(np.zeros(()), (len(steps), len(Phase), len(counts)))
    if any(counted.amount.any() for counted in counts):
        by_phase = np.stack([_by_phase(steps, phases, c, thread) for c in counts], axis=2)
    return HostDelays(
        paused_ns=_paused_by_phase(steps, phases, pauses(trace, exposed), thread),
        run_delay_ns=_by_phase(steps, phases, run_delay(trace, exposed, thread), thread),
        own_run_delay_ns=_by_phase(steps, phases, own_run_delay(trace, exposed, thread), thread),
        counts=by_phase,
    )


def _of_other(trace: Trace, steps: Steps, other_ns: Floats, phases_ns: Floats) -> OtherOnDevice:
    """Splits ``other_ns`` by what the device did; NaN if no kernels were recorded.

    On a device, the time of a phase is the time of the kernels that the phase launched. The rest of
    the kernel time belongs to kernels that were launched in no known phase.
    """
    if trace.device_activity is None:
        return OtherOnDevice(*[np.full(len(steps), np.nan)] * 3)
    ran = device_times(trace)
    unphased = np.clip(ran.compute_ns - phases_ns, 0.0, np.maximum(0.0, other_ns))
    idle = np.maximum(0.0, other_ns - unphased - ran.copies_ns)
    return OtherOnDevice(unphased, ran.copies_ns, idle)


def _running_ns(trace: Trace, in_flight: Floats) -> Floats:
    activity = trace.device_activity
    if activity is None or activity.communication is None:
        return in_flight
    return device_times(trace).communication_ns


def mean_of_known(part: Floats, exposed: Floats) -> float:
    """Returns the mean of a part of exposed time; unknown values count as 0.

    The means of ``wait``, ``transfer`` and ``unsplit`` then add up to the mean exposed time. NaN if
    the part is unknown in all rows with exposed time, or if there are no rows.
    """
    return float(means_of_known(part[np.newaxis], exposed[np.newaxis])[0])


def means_of_known(parts: Floats, exposed: Floats) -> Floats:
    """Returns :func:`mean_of_known` of each row of two tables ``[row, column]``."""
    if parts.shape[1] == 0:
        return np.full(len(parts), np.nan)
    is_exposed, unknown = exposed > 0, np.isnan(parts)
    none_known = is_exposed.any(axis=1) & (unknown | ~is_exposed).all(axis=1)
    means = np.nan_to_num(parts, nan=0.0).mean(axis=1)
    return np.where(none_known, np.nan, means)


def _step_of(steps: Steps, time_ns: Ints) -> Ints:
    """Row of the step that contains each time; -1 for times outside of all steps."""
    return row_containing(steps.begin_ns, steps.end_ns, time_ns)


def _sum_by_step(steps: Steps, step: Ints, values: Floats) -> Floats:
    inside = step >= 0
    return np.bincount(step[inside], weights=values[inside], minlength=len(steps)).astype(
        np.float64
    )


def _phase_times(steps: Steps, phases: Spans, thread: int) -> Floats:
    """Returns ``[step, phase]``: time of ``thread`` in each phase, waiting included."""
    row = _step_of(steps, phases.begin_ns)
    used = (row >= 0) & (phases.thread == thread) & (phases.key < len(Phase))
    length = np.minimum(phases.end_ns, steps.end_ns[row] if len(steps) else 0) - phases.begin_ns
    times = np.zeros((len(steps), len(Phase)))
    np.add.at(times, (row[used], phases.key[used]), length[used])
    return times


def _exposed_by_phase(
    steps: Steps, phases: Spans, exposed: Exposures, exposed_step: Ints, thread: int
) -> Floats:
    """Returns the waiting in each phase as ``[step, phase]``; other waiting is left out."""
    step = _step_of(steps, phases.begin_ns)
    mine = (phases.thread == thread) & (step >= 0)
    begin, key = phases.begin_ns[mine], phases.key[mine]
    end = np.minimum(phases.end_ns[mine], steps.end_ns[step[mine]])
    end[:-1] = np.minimum(end[:-1], begin[1:])  # a phase ends at the latest when the next begins
    times = np.zeros((len(steps), len(Phase)))
    used = exposed_step >= 0
    of_step = exposed_step[used]
    since = exposed.begin_ns[used]
    until = np.minimum(exposed.end_ns[used], steps.end_ns[of_step])
    rate = exposed.waited_ns[used] / np.maximum(exposed.end_ns[used] - since, 1)
    for code in np.unique(key[key < len(Phase)]).tolist():
        within_ns = covered(begin[key == code], end[key == code], None, since, until)
        times[:, code] = _sum_by_step(steps, of_step, rate * within_ns)
    return times


def _paused_by_phase(steps: Steps, phases: Spans, paused: Stretches, thread: int) -> Floats:
    """Returns the ns of pauses as ``[step, phase]``; pauses outside of phases count as OTHER."""
    times = np.zeros((len(steps), len(Phase)))
    if len(paused) == 0:
        return times
    paused = within(paused, stretches(steps.begin_ns, steps.end_ns))
    mine = (phases.thread == thread) & (phases.key < len(Phase))
    begin, end, key = phases.begin_ns[mine], phases.end_ns[mine], phases.key[mine]
    pieces = [(int(Phase.OTHER), outside(paused, stretches(begin, end)))]
    for code in range(len(Phase)):
        pieces.append((code, within(paused, stretches(begin[key == code], end[key == code]))))
    for code, piece in pieces:
        length = (piece.end_ns - piece.begin_ns).astype(np.float64)
        times[:, code] += _sum_by_step(steps, _step_of(steps, piece.begin_ns), length)
    return times


def _by_phase(steps: Steps, phases: Spans, counted: ExposedSpread, thread: int) -> Floats:
    """Returns the sums of a count as ``[step, phase]``; OTHER holds the rest of the step."""
    times = np.zeros((len(steps), len(Phase)))
    step = _step_of(steps, phases.begin_ns)
    mine = (phases.thread == thread) & (phases.key < len(Phase)) & (step >= 0)
    at = step[mine], phases.key[mine]
    np.add.at(times, at, counted.amount_in(phases.begin_ns[mine], phases.end_ns[mine]))
    whole = counted.amount_in(steps.begin_ns, steps.end_ns)
    times[:, Phase.OTHER] += np.maximum(0.0, whole - times.sum(axis=1))
    return times


def _by_origin(steps: Steps, exposed_step: Ints, origins: Origins, world_size: int) -> Caused:
    step = exposed_step[origins.exposure]
    named = (step >= 0) & (origins.rank >= 0) & (origins.rank < world_size)
    cell, first = distinct_rows(step[named], origins.rank[named], origins.cause[named])
    return Caused(
        step[named][first].astype(np.int32),
        origins.rank[named][first].astype(np.int32),
        origins.cause[named][first].astype(np.int8),
        np.bincount(cell, weights=origins.wait_ns[named]).astype(np.float64),
        len(steps),
        world_size,
    )


def _no_core(steps: Steps, finalizations: Finalizations, thread: int) -> Floats:
    mine = finalizations.span.thread == thread
    if not mine.any():  # time without a core is recorded only in finalisations
        return np.full(len(steps), np.nan)
    step = _step_of(steps, finalizations.span.begin_ns[mine])
    return _sum_by_step(steps, step, finalizations.no_core_ns[mine])


def in_flight_ns(
    steps: Steps, table: Collectives, chosen: npt.NDArray[np.bool_] | None = None
) -> Floats:
    """Returns, per step, the time in which at least one collective was in flight.

    ``chosen``: mask of the collectives that count; None for all.
    """
    ended = table.end_ns > table.issue_ns
    if chosen is not None:
        ended &= chosen
    return time_covered(table.issue_ns[ended], table.end_ns[ended], steps.begin_ns, steps.end_ns)


def time_covered(begin_ns: Ints, end_ns: Ints, since_ns: Ints, until_ns: Ints) -> Floats:
    """Returns, per window, the time that at least one interval covers.

    Windows last from ``since_ns`` to ``until_ns``, intervals from ``begin_ns`` to ``end_ns``.
    """
    order = np.argsort(begin_ns, kind="stable")
    begin, end = begin_ns[order], end_ns[order]
    if len(begin) == 0:
        return np.zeros(len(since_ns))
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], begin[1:] > reach[:-1]))
    first = begin[opens]
    last = reach[np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(reach) - 1]))]
    covered = np.concatenate(([0], np.cumsum(last - first)))

    def covered_until(time_ns: Ints) -> Ints:
        row = np.searchsorted(first, time_ns, side="right") - 1
        inside = np.where(row >= 0, np.minimum(time_ns, last[row]) - first[row], 0)
        return np.where(row >= 0, covered[row] + inside, 0)

    return (covered_until(until_ns) - covered_until(since_ns)).astype(np.float64)
