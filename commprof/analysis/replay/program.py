"""Programs of the ranks: each rank's events in the measured steps, in the rank's own time.

A rank's own time is a clock that stops while the rank's training thread waits for communication.
Events (issued collectives, waits, begins and ends of steps) are stored in own time. A replay can
then compute when the events happen if a phase or a transfer takes longer or shorter
(:mod:`commprof.analysis.replay.engine`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.exposure import Exposures, exposures_of
from commprof.analysis.step.measured import MeasuredWorld
from commprof.trace import columns
from commprof.trace.columns import Collectives, Finalizations, Ints, Spans, Steps
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, PHASES, Phase
from commprof.trace.stretches import covered

Floats = npt.NDArray[np.float64]

#: Kinds of events, in the order in which simultaneous events happen.
ISSUE, WAIT, STAND, MARK = range(4)
_REDUCE_SCATTER = OPS.index("reduce_scatter_tensor")
#: Fewest steps of a replay.
LEAST_STEPS = 5
#: Wanted number of events of all ranks in all replayed steps.
_MOST_EVENTS = 12_000
#: Most stretches of these steps, and fewest steps of each where there are several.
_MOST_STRETCHES = 4
_STRETCH_STEPS = 25


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Program:
    """The events of one rank in order; times in ns."""

    rank: int
    #: Begin of the first step, on the common clock.
    begin_ns: int
    #: End of the last step.
    until_ns: int
    #: Own time since ``begin_ns``, per event.
    own_ns: Floats
    kind: Ints
    #: ISSUE and WAIT: number of the collective's row over all ranks. MARK: 2 * step for the begin
    #: and 2 * step + 1 for the end of a step, where step is an index into the replayed steps.
    row: Ints
    #: WAIT: time at which the thread continued, less the completion of the collective. STAND: time
    #: that the thread stood still for an unknown reason.
    extra_ns: Floats
    #: Rows that another thread issued while the training thread stood still: they follow the
    #: completion of the row ``after`` by ``lag_ns``, and have no event.
    chained: Ints = field(default_factory=_none)
    after: Ints = field(default_factory=_none)
    lag_ns: Ints = field(default_factory=_none)
    #: Own time at the borders of steps and phases, and for each border but the first the step (its
    #: index, -1 for none) and the phase (its code) that end there.
    border_ns: Floats = field(default_factory=lambda: np.zeros(0))
    border_step: Ints = field(default_factory=_none)
    border_phase: Ints = field(default_factory=_none)

    @property
    def steps(self) -> int:
        """Number of replayed steps."""
        return int((self.kind == MARK).sum()) // 2

    def own_by_phase_ns(self) -> Floats:
        """Returns own time as ``[step, phase]``, phases in the order of ``schema.PHASES``."""
        table = np.zeros((self.steps, len(PHASES)))
        inside = self.border_step >= 0
        at = self.border_step[inside], self.border_phase[inside]
        np.add.at(table, at, np.diff(self.border_ns)[inside])
        return table

    @cached_property
    def pieces(self) -> Pieces:
        """Own time between issues of collectives, and between these and the borders of phases."""
        issued = self.own_ns[self.kind == ISSUE]
        last = len(self.border_ns) - 1
        at = np.clip(np.searchsorted(self.border_ns, issued, side="right") - 1, 0, last - 1)
        order = np.argsort(np.concatenate((np.arange(last + 1), at)), kind="stable")
        interval = np.concatenate((np.arange(last + 1), at))[order][:-1]
        return Pieces(
            edge_ns=np.concatenate((self.border_ns, issued))[order],
            is_issue=order > last,
            step=self.border_step[interval],
            phase=self.border_phase[interval],
        )

    def with_own(self, wanted_ns: Floats, length_ns: Floats | None = None) -> Floats:
        """Returns ``own_ns``, changed so that each phase takes ``wanted_ns[step, phase]``.

        A phase that has no own time in a step keeps none, because it has no interval to lengthen.
        ``length_ns``: lengths of ``pieces`` in proportion to which each phase is divided; those
        recorded if None.
        """
        pieces = self.pieces
        length = pieces.length_ns if length_ns is None else length_ns.copy()
        inside = pieces.step >= 0
        cell = pieces.step[inside], pieces.phase[inside]
        now = np.zeros((self.steps, len(PHASES)))
        np.add.at(now, cell, length[inside])
        factor = np.divide(wanted_ns, now, out=np.ones_like(now), where=now > 0)
        length[inside] *= factor[cell]
        moved = pieces.edge_ns[0] + np.concatenate(([0.0], np.cumsum(length)))
        changed: Floats = np.interp(self.own_ns, pieces.edge_ns, moved)
        changed[self.kind == ISSUE] = moved[pieces.is_issue]
        return changed


@dataclass(frozen=True)
class Pieces:
    """Own time of one rank, cut at its issues of collectives and at borders of steps and phases."""

    #: Own time at each cut.
    edge_ns: Floats
    #: True for the cuts that are issues; those of a program are in the order of its events.
    is_issue: npt.NDArray[np.bool_]
    #: Step (its index, -1 for none) and phase (its code) of each piece between two cuts.
    step: Ints
    phase: Ints

    @property
    def length_ns(self) -> Floats:
        """Length of each piece."""
        length: Floats = np.diff(self.edge_ns)
        return length

    def by_step_ns(self) -> Floats | None:
        """Returns the lengths as ``[step, piece]``; None unless all steps have the same pieces."""
        inside = self.step >= 0
        steps = int(self.step.max(initial=-1)) + 1
        if steps == 0 or inside.sum() % steps:
            return None
        step, phase = (x[inside].reshape(steps, -1) for x in (self.step, self.phase))
        alike = (step == np.arange(steps)[:, np.newaxis]).all() and (phase == phase[0]).all()
        return self.length_ns[inside].reshape(steps, -1) if alike else None

    def with_lengths(self, by_step_ns: Floats) -> Floats:
        """Returns the lengths of all pieces, those in steps from ``by_step_ns[step, piece]``."""
        length = self.length_ns
        length[self.step >= 0] = by_step_ns.reshape(-1)
        return length

    def in_same_order(self, other: Pieces) -> bool:
        """True if another rank's pieces belong to the same steps and phases."""
        return np.array_equal(self.step, other.step) and np.array_equal(self.phase, other.phase)


def programs(seen: MeasuredWorld, step: Ints) -> list[Program]:
    """Makes one program per rank; ``step``: the numbers of the replayed steps, in order."""
    first = np.concatenate(([0], np.cumsum(seen.matching.lengths)))
    made = []
    for rank, trace, table, offset in zip(
        seen.ranks, seen.traces, seen.tables, first[:-1].tolist(), strict=True
    ):
        steps = columns.steps(trace)
        chosen = np.isin(steps.index, step)
        steps = Steps(
            steps.index[chosen],
            steps.begin_ns[chosen],
            steps.end_ns[chosen],
            steps.thread[chosen],
            steps.source,
        )
        exposed = _apart(exposures_of(trace))
        finalizations = columns.finalizations(trace)
        made.append(
            _program(
                rank, table, offset, steps, exposed, finalizations, columns.phases(trace), step
            )
        )
    return made


def replayed_steps(seen: MeasuredWorld, most: int = _MOST_STRETCHES) -> list[Ints]:
    """Chooses the measured steps to replay; returns the step numbers of each stretch.

    A stretch is a sequence of consecutive measured steps. If all steps hold few enough events,
    they are the only stretch. Otherwise, at most ``most`` stretches of equal length are spread
    evenly over the run.
    """
    step = seen.measured[0].step
    held = np.zeros(len(step))
    for trace, table in zip(seen.traces, seen.tables, strict=True):
        steps = columns.steps(trace)
        chosen = np.isin(steps.index, step)
        issued = np.sort(table.issue_ns)
        begun = np.searchsorted(issued, steps.begin_ns[chosen])
        held += 2 + 2 * (np.searchsorted(issued, steps.end_ns[chosen]) - begun)
    wanted = max(LEAST_STEPS + 1, int(_MOST_EVENTS / held.mean()))
    if wanted >= len(step):
        return [step]
    count = max(1, min(most, wanted // _STRETCH_STEPS))
    length = wanted // count
    middles = len(step) * (np.arange(count) + 0.5) / count
    begins = (middles - length / 2).astype(int).tolist()
    return [step[begin : begin + length] for begin in begins]


def own_times(trace: Trace, begin_ns: int, time_ns: Ints) -> Floats:
    """Converts times of a rank to its own time since ``begin_ns``, all in ns.

    ``trace`` is that of ``MeasuredWorld.traces``, and ``begin_ns`` that of the rank's program.
    """
    return _OwnTime(_apart(exposures_of(trace)), begin_ns).at(time_ns)


def _apart(exposed: Exposures) -> Exposures:
    """Returns the exposures, cut so that each begins after the previous one has ended."""
    end = np.maximum.accumulate(exposed.end_ns) if len(exposed) else exposed.end_ns
    begin = exposed.begin_ns.copy()
    begin[1:] = np.maximum(begin[1:], end[:-1])
    return Exposures(
        exposed.collective, exposed.graph_task, begin, np.maximum(begin, end), exposed.waited_ns
    )


class _OwnTime:
    """Own time of one rank: time since its first step began, without waiting for communication."""

    def __init__(self, exposed: Exposures, begin_ns: int) -> None:
        """Prepares own time: the time since ``begin_ns``, less the waiting in ``exposed``.

        The intervals of ``exposed`` must not overlap.
        """
        self._exposed, self._begin_ns = exposed, begin_ns

    def at(self, time_ns: Ints) -> Floats:
        """Converts ns on the common clock of all ranks to ns of this rank's own time."""
        begin = np.full(len(time_ns), self._begin_ns, dtype=np.int64)
        stood = covered(
            self._exposed.begin_ns, self._exposed.end_ns, self._exposed.waited_ns, begin, time_ns
        )
        own: Floats = (time_ns - self._begin_ns) - stood
        return own


def _program(
    rank: int,
    table: Collectives,
    offset: int,
    steps: Steps,
    exposed: Exposures,
    finalizations: Finalizations,
    phases: Spans,
    replayed: Ints,
) -> Program:
    begin_ns, until_ns, thread = int(steps.begin_ns[0]), int(steps.end_ns[-1]), steps.thread[0]
    own = _OwnTime(exposed, begin_ns)
    issued = np.flatnonzero((table.issue_ns >= begin_ns) & (table.issue_ns < until_ns))
    chained, after = _chained(table, issued, exposed, int(thread))
    issued = np.setdiff1d(issued, chained)
    waits = np.flatnonzero((exposed.begin_ns >= begin_ns) & (exposed.begin_ns < until_ns))
    row = exposed.collective[waits]
    end_ns = np.where(row >= 0, table.end_ns[row], 0) if len(table) else np.zeros_like(row)
    known = end_ns > 0
    went_on = exposed.begin_ns[waits] + exposed.waited_ns[waits]
    done, done_ns = _found_complete(table, exposed, finalizations, int(thread))
    inside = (done_ns >= begin_ns) & (done_ns < until_ns)
    done, done_ns = done[inside], done_ns[inside]
    place = np.searchsorted(replayed, steps.index)
    # A stream may wait for a collective before another stream is ready for it.
    issue_ns = table.issue_ns.copy()
    np.minimum.at(issue_ns, row[row >= 0], exposed.begin_ns[waits][row >= 0])
    events = [
        (issue_ns[issued], ISSUE, offset + issued, np.zeros(len(issued))),
        (
            exposed.begin_ns[waits][known],
            WAIT,
            offset + row[known],
            # A wait may begin after its collective was done, on a device above all.
            (went_on - np.maximum(end_ns, exposed.begin_ns[waits]))[known],
        ),
        # The pass did not wait for a collective that was complete only later.
        (done_ns, WAIT, offset + done, np.minimum(0, done_ns - table.end_ns[done])),
        (
            exposed.begin_ns[waits][~known],
            STAND,
            np.full((~known).sum(), -1),
            exposed.waited_ns[waits][~known],
        ),
        (steps.begin_ns, MARK, 2 * place, np.zeros(len(steps))),
        (steps.end_ns, MARK, 2 * place + 1, np.zeros(len(steps))),
    ]
    time = np.concatenate([each[0] for each in events])
    kind = np.concatenate([np.full(len(each[0]), each[1]) for each in events])
    number = np.concatenate([each[2] for each in events]).astype(np.int64)
    extra = np.concatenate([each[3] for each in events]).astype(np.float64)
    # A step's end comes before the begin of the next one, which is at the same time.
    order = np.lexsort((-(number % 2) * (kind == MARK), kind, time))
    border_ns, border_step, border_phase = _borders(steps, phases, own, replayed)
    return Program(
        rank=rank,
        begin_ns=begin_ns,
        until_ns=until_ns,
        own_ns=np.maximum.accumulate(own.at(time[order])),
        kind=kind[order],
        row=number[order],
        extra_ns=extra[order],
        chained=offset + chained,
        after=offset + after,
        lag_ns=table.issue_ns[chained] - table.end_ns[after],
        border_ns=border_ns,
        border_step=border_step,
        border_phase=border_phase,
    )


def _chained(
    table: Collectives, issued: Ints, exposed: Exposures, thread: int
) -> tuple[Ints, Ints]:
    """Returns those of ``issued`` that other threads issued while the training thread waited.

    ``issued`` holds rows of ``table``; ``thread`` is the training thread. Also returns each row's
    predecessor: the last row of the same group to complete before the row was issued. For example,
    a hook's first all-reduce precedes its second one. Rows without a predecessor are left out.
    """
    others = issued[table.thread[issued] != thread]
    at = np.searchsorted(exposed.begin_ns, table.issue_ns[others], side="right") - 1
    others, at = others[at >= 0], at[at >= 0]
    others = others[table.issue_ns[others] < exposed.end_ns[at]]
    ended = np.flatnonzero(table.end_ns > 0)
    ended = ended[np.lexsort((table.end_ns[ended], table.group[ended]))]
    after = np.full(len(others), -1, dtype=np.int64)
    for group in np.unique(table.group[others]).tolist():
        mine, before = table.group[others] == group, ended[table.group[ended] == group]
        if len(before):
            found = np.searchsorted(table.end_ns[before], table.issue_ns[others[mine]], "right") - 1
            after[mine] = np.where(found >= 0, before[np.maximum(found, 0)], -1)
    return others[after >= 0], after[after >= 0]


def _found_complete(
    table: Collectives, exposed: Exposures, finalizations: Finalizations, thread: int
) -> tuple[Ints, Ints]:
    """Returns the rows of buckets for which a DDP finalisation did not wait, and a time in ns each.

    A finalisation is the end of a backward pass, where DDP waits for the buckets. The time is the
    bucket's completion, clipped to the begin and end of the finalisation. Collectives that the
    script waited for itself are left out. Backward passes of FSDP2 have no finalisation, because
    FSDP2 waits for its collectives earlier in backward.
    """
    span = finalizations.span
    mine = np.flatnonzero(span.thread == thread)
    mine = mine[np.argsort(span.key[mine], kind="stable")]
    rows = np.flatnonzero((table.graph_task >= 0) & (table.end_ns > 0))
    sharded = np.unique(table.graph_task[table.op == _REDUCE_SCATTER])
    rows = rows[~np.isin(table.graph_task[rows], sharded)]
    rows = np.setdiff1d(rows, exposed.collective)
    at = np.searchsorted(span.key[mine], table.graph_task[rows])
    found = at < len(mine)
    rows, at = rows[found], mine[at[found]]
    same = span.key[at] == table.graph_task[rows]
    rows, at = rows[same], at[same]
    when = np.clip(table.end_ns[rows], span.begin_ns[at], span.end_ns[at])
    return rows, when


def _borders(
    steps: Steps, phases: Spans, own: _OwnTime, replayed: Ints
) -> tuple[Floats, Ints, Ints]:
    mine = (phases.thread == steps.thread[0]) & (phases.key < len(Phase))
    begin, end, key = phases.begin_ns[mine], phases.end_ns[mine], phases.key[mine]
    order = np.argsort(begin, kind="stable")
    begin, end, key = begin[order], end[order], key[order]
    times = np.unique(np.concatenate((steps.begin_ns, steps.end_ns, begin, end)))
    times = times[(times >= steps.begin_ns[0]) & (times <= steps.end_ns[-1])]
    middle = (times[:-1] + times[1:]) // 2
    row = np.searchsorted(steps.begin_ns, middle, side="right") - 1
    step = np.where(middle < steps.end_ns[row], np.searchsorted(replayed, steps.index[row]), -1)
    phase = np.full(len(middle), int(Phase.OTHER))
    if len(begin):
        at = np.maximum(np.searchsorted(begin, middle, side="right") - 1, 0)
        phase = np.where((begin[at] <= middle) & (middle < end[at]), key[at], phase)
    return np.maximum.accumulate(own.at(times)), step.astype(np.int64), phase.astype(np.int64)
