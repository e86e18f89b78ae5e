"""Makes the program of each rank: its events in the measured steps, at times of its own clock.

A rank's own clock stops while its training thread waits for communication. The events are issues of
collectives, waits, and begins and ends of steps. A replay (:mod:`commprof.analysis.replay.engine`)
computes when the events would happen if a phase or a transfer took longer or shorter.

The programs of all ranks are made together, because separate numpy calls for each rank would take
too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from commprof.analysis.replay.own_time import OwnTimes, apart
from commprof.analysis.step.exposure import Exposures, exposures_of
from commprof.analysis.step.measured import MeasuredWorld
from commprof.trace import columns
from commprof.trace.columns import Ints, Spans, steps_of_ranks, tables_of
from commprof.trace.lookup import distinct_rows
from commprof.trace.ranks import accumulated, firsts, firsts_of, joined, ranks_of, rows_containing
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, PHASES, Phase

try:
    from commprof._reading import last_until, moved_events
except ImportError:  # the C++ module is not built, or too old: numpy computes the same
    last_until = moved_events = None  # type: ignore[assignment]

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Kinds of events; simultaneous events happen in this order.
ISSUE, WAIT, STAND, MARK = range(4)
_REDUCE_SCATTER = OPS.index("reduce_scatter_tensor")
LEAST_STEPS = 5
#: Largest number of events in the replayed steps of all ranks; approximate.
_MOST_EVENTS = 12_000
#: The replayed steps form at most this many stretches of consecutive steps.
_MOST_STRETCHES = 4
#: Smallest number of steps of a stretch, if there are several stretches.
_STRETCH_STEPS = 25


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Program:
    """The events of one rank in order; times in ns."""

    rank: int
    #: Start of the first step, on the common clock.
    begin_ns: int
    #: End of the last step.
    until_ns: int
    #: Per event: own time since ``begin_ns``.
    own_ns: Floats
    kind: Ints
    #: For ISSUE and WAIT: row of the collective, counted over all ranks. For MARK: 2 * step for the
    #: start of a step and 2 * step + 1 for its end; step is an index into the replayed steps.
    row: Ints
    #: For WAIT: delay until the thread continued, counted from the completion of the collective, or
    #: from the begin of the wait if the wait began later. For STAND: length of a wait whose end has
    #: no known reason.
    extra_ns: Floats
    #: Rows of collectives that another thread issued while the training thread waited. These rows
    #: have no event: each row is issued ``lag_ns`` after the completion of the row ``after``.
    chained: Ints = field(default_factory=_none)
    after: Ints = field(default_factory=_none)
    lag_ns: Ints = field(default_factory=_none)
    #: Own time at the borders of steps and phases.
    border_ns: Floats = field(default_factory=lambda: np.zeros(0))
    #: Code of the phase after each border; the last border has no entry.
    border_phase: Ints = field(default_factory=_none)

    @property
    def steps(self) -> int:
        """Number of replayed steps."""
        return int((self.kind == MARK).sum()) // 2


@dataclass(frozen=True)
class Events:
    """Events of all programs, one program after the other; see :class:`Program`."""

    #: Index of each program's first event; the last entry is the number of events.
    first: Ints
    begin_ns: Ints
    own_ns: Floats
    kind: Ints
    row: Ints
    extra_ns: Floats
    #: Index of each program's first chained row; the last entry is the number of chained rows.
    first_chained: Ints
    chained: Ints
    after: Ints
    lag_ns: Ints

    @classmethod
    def of(cls, programs: Sequence[Program]) -> Events:
        """Joins the events of programs."""
        if isinstance(programs, Programs):
            return programs.events
        return cls(
            first=firsts([len(program.kind) for program in programs]),
            begin_ns=np.array([program.begin_ns for program in programs], dtype=np.int64),
            own_ns=joined(programs, "own_ns"),
            kind=joined(programs, "kind"),
            row=joined(programs, "row"),
            extra_ns=joined(programs, "extra_ns"),
            first_chained=firsts([len(program.chained) for program in programs]),
            chained=joined(programs, "chained"),
            after=joined(programs, "after"),
            lag_ns=joined(programs, "lag_ns"),
        )


@dataclass(frozen=True)
class Pieces:
    """Own time of all ranks, cut at issues of collectives and at borders of steps and phases.

    A piece lies between two neighbouring cuts of a rank.
    """

    #: Index of each rank's first cut; the last entry is the number of cuts.
    first: Ints
    edge_ns: Floats
    #: True for the cuts that are issues. The issues of a program are in the order of its events.
    is_issue: Mask
    #: Per cut: index of the step with the piece after the cut; -1 outside of steps, and at the last
    #: cut of a rank.
    step: Ints
    #: Per cut: code of the phase of the piece after the cut; -1 at the last cut of a rank.
    phase: Ints

    @cached_property
    def is_last(self) -> Mask:
        """True for the last cut of each rank."""
        mask = np.zeros(len(self.edge_ns), dtype=np.bool_)
        mask[self.first[1:] - 1] = True
        return mask

    @cached_property
    def length_ns(self) -> Floats:
        """Length of the piece after each cut; 0 after the last cut of a rank."""
        length: Floats = np.diff(self.edge_ns, append=0.0)
        length[self.is_last] = 0.0
        return length

    def of(self, place: int) -> slice:
        """Returns the slice of one rank's cuts."""
        return slice(int(self.first[place]), int(self.first[place + 1]))

    def by_step(self, place: int) -> Ints | None:
        """Returns the rows of a rank's pieces as ``[step, piece]``; None if the steps differ.

        Rows count from the rank's first cut.
        """
        cuts = self.of(place)
        inside = np.flatnonzero(self.step[cuts] >= 0)
        steps = int(self.step[cuts].max(initial=-1)) + 1
        if steps == 0 or len(inside) % steps:
            return None
        rows = inside.reshape(steps, -1)
        step, phase = self.step[cuts][rows], self.phase[cuts][rows]
        alike = (step == np.arange(steps)[:, np.newaxis]).all() and (phase == phase[0]).all()
        return rows if alike else None

    def alike(self, place: int) -> Mask:
        """True for ranks whose pieces have the same steps and phases as the pieces of ``place``."""
        count = np.diff(self.first)
        ranks = np.flatnonzero(count == count[place])
        rows = self.first[ranks][:, np.newaxis] + np.arange(count[place])
        same = (self.step[rows] == self.step[self.of(place)]).all(axis=1)
        same &= (self.phase[rows] == self.phase[self.of(place)]).all(axis=1)
        mask = np.zeros(len(count), dtype=np.bool_)
        mask[ranks[same]] = True
        return mask

    def with_lengths(self, by_step_ns: Mapping[int, Floats]) -> Floats:
        """Returns ``length_ns`` with new lengths for some ranks.

        ``by_step_ns``: by index of the rank, the lengths ``[step, piece]`` of its pieces in steps.
        """
        length = self.length_ns.copy()
        for place, lengths in by_step_ns.items():
            cuts = self.of(place)
            length[cuts][self.step[cuts] >= 0] = lengths.reshape(-1)
        return length


@dataclass(frozen=True)
class _Borders:
    #: Index of each rank's first border; the last entry is the number of borders.
    first: Ints
    own_ns: Floats
    #: Index of the step after each border; -1 outside of steps, and at the last border of a rank.
    step: Ints
    #: Code of the phase after each border; -1 at the last border of a rank.
    phase: Ints


class Programs(Sequence[Program]):
    """The programs of all ranks, stored in joined columns."""

    def __init__(
        self, ranks: Sequence[int], until_ns: Ints, steps: int, events: Events, borders: _Borders
    ) -> None:
        self.ranks, self.until_ns, self.steps, self.events = list(ranks), until_ns, steps, events
        self._borders = borders

    @property
    def begin_ns(self) -> Ints:
        """Start of each rank's first step, on the common clock."""
        return self.events.begin_ns

    def __len__(self) -> int:
        return len(self.ranks)

    @overload
    def __getitem__(self, place: int) -> Program: ...
    @overload
    def __getitem__(self, place: slice) -> list[Program]: ...
    def __getitem__(self, place: Any) -> Any:
        """Returns the program of one rank, or a list of programs for a slice."""
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        events, borders = self.events, self._borders
        mine, chained, border = (
            slice(*first[place : place + 2].tolist())
            for first in (events.first, events.first_chained, borders.first)
        )
        return Program(
            rank=self.ranks[place],
            begin_ns=int(events.begin_ns[place]),
            until_ns=int(self.until_ns[place]),
            own_ns=events.own_ns[mine],
            kind=events.kind[mine],
            row=events.row[mine],
            extra_ns=events.extra_ns[mine],
            chained=events.chained[chained],
            after=events.after[chained],
            lag_ns=events.lag_ns[chained],
            border_ns=borders.own_ns[border],
            border_phase=borders.phase[border][:-1],
        )

    def own_by_phase_ns(self) -> Floats:
        """Returns own time as ``[rank, step, phase]``, phases in the order of ``PHASES``."""
        borders = self._borders
        length = np.diff(borders.own_ns, append=0.0)
        return self._by_phase(borders.first, borders.step, borders.phase, length)

    def _by_phase(self, first: Ints, step: Ints, phase: Ints, length_ns: Floats) -> Floats:
        inside = step >= 0
        cell = self._cell(first, step, phase)[inside]
        shape = len(self), self.steps, len(PHASES)
        total = np.bincount(cell, weights=length_ns[inside], minlength=int(np.prod(shape)))
        return total.reshape(shape).astype(np.float64)

    def _cell(self, first: Ints, step: Ints, phase: Ints) -> Ints:
        rank = np.repeat(np.arange(len(self)), np.diff(first))
        return (rank * self.steps + step) * len(PHASES) + phase

    @cached_property
    def _cells(self) -> Ints:
        """Per cut: cell of its piece in a table ``[rank, step, phase]``; -1 outside of steps."""
        pieces = self.pieces
        return np.where(
            pieces.step >= 0, self._cell(pieces.first, pieces.step, pieces.phase), -1
        ).astype(np.int64)

    @cached_property
    def pieces(self) -> Pieces:
        """Own time, cut at issues of collectives and at borders of steps and phases."""
        events, borders = self.events, self._borders
        issued = np.flatnonzero(events.kind == ISSUE)
        issued_ns = events.own_ns[issued]
        cuts = np.searchsorted(issued, events.first)
        at = _last_until(borders.own_ns, borders.first, issued_ns, cuts)
        rank = np.repeat(np.arange(len(self)), np.diff(cuts))
        at = np.clip(at, borders.first[rank], borders.first[rank + 1] - 2)
        count = len(borders.own_ns)
        interval = np.concatenate((np.arange(count), at))
        order = np.argsort(interval, kind="stable")
        interval = interval[order]
        return Pieces(
            first=borders.first + cuts,
            edge_ns=np.concatenate((borders.own_ns, issued_ns))[order],
            is_issue=order >= count,
            step=borders.step[interval],
            phase=borders.phase[interval],
        )

    @cached_property
    def _edge(self) -> Ints:
        """Last cut of ``pieces`` up to each event."""
        pieces = self.pieces
        return _last_until(pieces.edge_ns, pieces.first, self.events.own_ns, self.events.first)

    def with_own(self, wanted_ns: Floats, length_ns: Floats | None = None) -> Floats:
        """Returns the own time of all events if each phase takes ``wanted_ns[rank, step, phase]``.

        A phase without own time in a step stays without own time. Other phases are divided among
        their pieces in proportion to ``length_ns``; None for the recorded lengths.
        """
        pieces, events = self.pieces, self.events
        length = pieces.length_ns if length_ns is None else length_ns
        if moved_events is not None:
            return moved_events(
                first=pieces.first,
                edge=pieces.edge_ns,
                is_issue=pieces.is_issue,
                cell=self._cells,
                length=length,
                first_event=events.first,
                own=events.own_ns,
                kind=events.kind,
                wanted=wanted_ns.reshape(-1),
            )
        length = length.copy()
        now = self._by_phase(pieces.first, pieces.step, pieces.phase, length)
        factor = np.divide(wanted_ns, now, out=np.ones_like(now), where=now > 0).reshape(-1)
        inside = pieces.step >= 0
        cell = self._cell(pieces.first, pieces.step, pieces.phase)[inside]
        length[inside] *= factor[cell]
        since = np.concatenate(([0.0], length[:-1]))
        since[pieces.first[:-1]] = 0.0
        begin = np.repeat(pieces.edge_ns[pieces.first[:-1]], np.diff(pieces.first))
        moved = begin + accumulated(np.add, since, pieces.first)
        edge = self._edge
        longer, wide = (np.diff(each, append=0.0)[edge] for each in (moved, pieces.edge_ns))
        beyond = events.own_ns - pieces.edge_ns[edge]
        within = ~pieces.is_last[edge] & (beyond > 0)
        rate = np.divide(longer, wide, out=np.zeros_like(wide), where=within)
        changed: Floats = rate * np.where(within, beyond, 0.0) + moved[edge]
        changed[events.kind == ISSUE] = moved[pieces.is_issue]
        return changed


def _last_until(edges: Floats, first: Ints, values: Floats, cuts: Ints) -> Ints:
    """Returns, per value, the index of the rank's last edge up to the value.

    If the rank has no such edge, this is the index of its first edge. ``first`` and ``cuts`` are
    the indices of each rank's first edge and first value; their last entries are the total numbers.
    """
    if last_until is not None:
        return last_until(edges=edges, first=first, values=values, cuts=cuts)
    row = np.empty(len(values), dtype=np.int64)
    bounds = first.tolist(), cuts.tolist()
    for place in range(len(first) - 1):
        (begin, end), (low, high) = (bound[place : place + 2] for bound in bounds)
        found = edges[begin:end].searchsorted(values[low:high], side="right")
        row[low:high] = begin - 1 + found
    return np.maximum(row, np.repeat(first[:-1], np.diff(cuts)))


def programs(seen: MeasuredWorld, step: Ints) -> Programs:
    """Makes one program per rank; ``step``: indices of the replayed steps, in order."""
    ranks = _Ranks(seen, step)
    return Programs(seen.ranks, ranks.until_ns, len(step), ranks.events(), ranks.borders())


def replayed_steps(seen: MeasuredWorld, most: int = _MOST_STRETCHES) -> list[Ints]:
    """Chooses the measured steps to replay; returns the step numbers of each stretch.

    A stretch is a sequence of consecutive measured steps. In a run with few events, all measured
    steps are one stretch. In other runs, at most ``most`` stretches of equal length are spread
    evenly over the run.
    """
    step = seen.measured.step
    steps, first_step = steps_of_ranks(seen.traces, step)
    issue_ns, first_call = joined(seen.tables, "issue_ns"), firsts_of(seen.tables)
    row = rows_containing(steps.begin_ns, steps.end_ns, first_step, issue_ns, first_call)
    issued = np.bincount(row[row >= 0], minlength=len(steps)).reshape(len(seen.traces), -1)
    held = (2 + 2 * issued).sum(axis=0)
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

    ``trace``: the rank's entry in ``MeasuredWorld.traces``; ``begin_ns``: the begin of the rank's
    program.
    """
    exposed = exposures_of(trace)
    first = np.array([0, len(exposed)])
    until_ns = max(begin_ns, int(time_ns.max(initial=begin_ns)))
    own = OwnTimes(apart(exposed, first), first, np.array([begin_ns]), np.array([until_ns]))
    return own.at(np.zeros(len(time_ns), dtype=np.int64), time_ns)


class _Ranks:
    def __init__(self, seen: MeasuredWorld, step: Ints) -> None:
        self._seen, self._step = seen, step
        traces = seen.traces
        of_ranks = tables_of(traces, columns.steps)
        chosen = np.isin(joined(of_ranks, "index"), step)
        begin_ns, end_ns, thread = (
            joined(of_ranks, name)[chosen].reshape(len(traces), -1)
            for name in ("begin_ns", "end_ns", "thread")
        )
        #: ``[rank, step]``.
        self._step_begin_ns, self._step_end_ns = begin_ns, end_ns
        self._begin_ns, self.until_ns = begin_ns[:, 0], end_ns[:, -1]
        self._thread = thread[:, 0]
        exposed = tables_of(traces, exposures_of)
        self._first_wait = firsts_of(exposed)
        self._exposed = apart(
            Exposures(
                *(joined(exposed, name) for name in ("collective", "graph_task")),
                *(joined(exposed, name) for name in ("begin_ns", "end_ns", "waited_ns")),
            ),
            self._first_wait,
        )
        self._own = OwnTimes(self._exposed, self._first_wait, self._begin_ns, self.until_ns)
        self._first_call = firsts_of(seen.tables)
        self._issue_ns, self._end_ns = (
            joined(seen.tables, name) for name in ("issue_ns", "end_ns")
        )

    def _calls(self, name: str) -> Any:
        return joined(self._seen.tables, name)

    def _inside(self, rank: Ints, time_ns: Ints) -> Mask:
        mask: Mask = (time_ns >= self._begin_ns[rank]) & (time_ns < self.until_ns[rank])
        return mask

    def events(self) -> Events:
        rank_of_call = ranks_of(self._first_call)
        is_issued = self._inside(rank_of_call, self._issue_ns)
        chained, after = self._chained(np.flatnonzero(is_issued), rank_of_call)
        chained_rank = rank_of_call[chained]
        is_issued[chained] = False
        issued = np.flatnonzero(is_issued)
        exposed, rank_of_wait = self._exposed, ranks_of(self._first_wait)
        waits = np.flatnonzero(self._inside(rank_of_wait, exposed.begin_ns))
        wait_rank, begun_ns = rank_of_wait[waits], exposed.begin_ns[waits]
        waited_ns = exposed.waited_ns[waits]
        row = exposed.collective[waits]
        row = np.where(row >= 0, row + self._first_call[wait_rank], -1)
        end_ns = np.zeros_like(row)
        end_ns[row >= 0] = self._end_ns[row[row >= 0]]
        known = end_ns > 0
        went_on = begun_ns + waited_ns
        done, done_ns = self._found_complete(rank_of_call)
        done_rank = rank_of_call[done]
        inside = self._inside(done_rank, done_ns)
        done, done_ns, done_rank = done[inside], done_ns[inside], done_rank[inside]
        # On a device, a collective counts as issued when its stream is ready. If another stream
        # begins to wait for the collective earlier, the issue moves to the begin of this wait.
        issue_ns = self._issue_ns.copy()
        np.minimum.at(issue_ns, row[row >= 0], begun_ns[row >= 0])
        steps = np.tile(np.arange(len(self._step)), len(self._begin_ns))
        step_rank = np.repeat(np.arange(len(self._begin_ns)), len(self._step))
        parts: list[tuple[Ints, Ints, int, Ints, Floats]] = [
            (rank_of_call[issued], issue_ns[issued], ISSUE, issued, np.zeros(len(issued))),
            (
                wait_rank[known],
                begun_ns[known],
                WAIT,
                row[known],
                # A wait may begin after its collective was complete, especially on a device.
                (went_on - np.maximum(end_ns, begun_ns))[known],
            ),
            # DDP's finalisation did not wait for these buckets. If a bucket was complete only after
            # the finalisation, its delay is negative.
            (done_rank, done_ns, WAIT, done, np.minimum(0.0, done_ns - self._end_ns[done])),
            (
                wait_rank[~known],
                begun_ns[~known],
                STAND,
                np.full((~known).sum(), -1),
                waited_ns[~known],
            ),
            (step_rank, self._step_begin_ns.ravel(), MARK, 2 * steps, np.zeros(len(steps))),
            (step_rank, self._step_end_ns.ravel(), MARK, 2 * steps + 1, np.zeros(len(steps))),
        ]
        # These columns are large, so they are freed early.
        del rank_of_wait, waits, wait_rank, begun_ns, waited_ns, row, end_ns, known, went_on
        del rank_of_call, is_issued, issued, issue_ns, done, done_ns, done_rank
        kind = np.repeat([part[2] for part in parts], [len(part[0]) for part in parts])
        of_parts = [[part[at] for part in parts] for at in (4, 3, 1, 0)]
        del parts
        rank, time_ns, number, extra = (np.concatenate(of_parts.pop()) for _ in range(4))
        # The end of a step may have the same time as the start of the next step: the end is first.
        simultaneous = (2 * kind + (kind == MARK) * (1 - number % 2)).astype(np.int8)
        order = np.lexsort((simultaneous, self._own.times.key(rank, time_ns)))
        first = firsts(np.bincount(rank, minlength=len(self._begin_ns)))
        del simultaneous
        kind, number, extra = kind[order], number[order], extra[order]
        rank, time_ns = rank[order], time_ns[order]
        del order
        return Events(
            first=first,
            begin_ns=self._begin_ns,
            own_ns=accumulated(np.maximum, self._own.at(rank, time_ns), first),
            kind=kind,
            row=number.astype(np.int64, copy=False),
            extra_ns=extra.astype(np.float64, copy=False),
            first_chained=firsts(np.bincount(chained_rank, minlength=len(self._begin_ns))),
            chained=chained,
            after=after,
            lag_ns=self._issue_ns[chained] - self._end_ns[after],
        )

    def _chained(self, issued: Ints, rank_of_call: Ints) -> tuple[Ints, Ints]:
        """Returns the rows that other threads issued while the training thread waited.

        Also returns each row's predecessor: the last row of the same group and rank that completed
        before the row was issued. Rows without a predecessor are left out. For example, a hook may
        issue a second all-reduce when its first all-reduce is complete.
        """
        thread = self._calls("thread")
        others = issued[thread[issued] != self._thread[rank_of_call[issued]]]
        if not len(others):
            return others, others
        rank = rank_of_call[others]
        at = self._own.wait_at(rank, self._issue_ns[others])
        stands = at >= 0
        stands[stands] = self._issue_ns[others[stands]] < self._exposed.end_ns[at[stands]]
        others = others[stands]
        group = self._calls("group")
        ended = np.flatnonzero(self._end_ns > 0)
        both = np.concatenate((ended, others))
        queue, _ = distinct_rows(rank_of_call[both], group[both])
        # A queue holds the rows of one rank and group, in the order of their ends.
        ended_queue, others_queue = queue[: len(ended)], queue[len(ended) :]
        order = np.lexsort((self._end_ns[ended], ended_queue))
        ended, ended_queue = ended[order], ended_queue[order]
        ended_at, others_at = (
            self._own.times.since(rank_of_call[rows], time_ns[rows])
            for rows, time_ns in ((ended, self._end_ns), (others, self._issue_ns))
        )
        longest = 1 + max(int(ended_at.max(initial=0)), int(others_at.max(initial=0)))
        found = (
            np.searchsorted(
                ended_queue * longest + ended_at, others_queue * longest + others_at, side="right"
            )
            - 1
        )
        has = found >= 0
        has[has] = ended_queue[found[has]] == others_queue[has]
        return others[has], ended[found[has]]

    def _found_complete(self, rank_of_call: Ints) -> tuple[Ints, Ints]:
        """Returns the buckets for which DDP did not have to wait: their rows, and a time for each.

        DDP waits for its buckets at the end of a backward pass, in the finalisation. The time is
        the bucket's completion in ns, limited to the interval of the finalisation. Collectives for
        which the script waited are left out. FSDP2 has no finalisation: it waits for its
        collectives earlier.
        """
        passes = tables_of(self._seen.traces, columns.finalizations)
        rank_of_span = ranks_of(firsts_of(passes))
        mine = np.flatnonzero(joined(passes, "span.thread") == self._thread[rank_of_span])
        if not len(mine):
            return _none(), _none()
        key, begin_ns, end_ns = (
            joined(passes, f"span.{name}") for name in ("key", "begin_ns", "end_ns")
        )
        task = self._calls("graph_task")
        candidate = (task >= 0) & (self._end_ns > 0)
        waited_for = self._exposed.collective >= 0
        candidate[
            (self._exposed.collective + self._first_call[ranks_of(self._first_wait)])[waited_for]
        ] = False
        rows = np.flatnonzero(candidate)
        scattering = np.flatnonzero(self._calls("op") == _REDUCE_SCATTER)
        ranks = np.concatenate((rank_of_span[mine], rank_of_call[rows], rank_of_call[scattering]))
        tasks = np.concatenate((key[mine], task[rows], task[scattering]))
        number, first = distinct_rows(ranks, tasks)
        sharded = np.zeros(len(first), dtype=np.bool_)
        sharded[number[len(mine) + len(rows) :]] = True
        # The columns begin with the finalisations. So the first row of a backward pass is the
        # pass's finalisation, if the pass has one.
        at = first[number[len(mine) : len(mine) + len(rows)]]
        found = (at < len(mine)) & ~sharded[number[len(mine) : len(mine) + len(rows)]]
        rows, at = rows[found], mine[at[found]]
        return rows, np.clip(self._end_ns[rows], begin_ns[at], end_ns[at])

    def borders(self) -> _Borders:
        spans = tables_of(self._seen.traces, columns.phases)
        rank = ranks_of(firsts_of(spans))
        phases = Spans(*(joined(spans, name) for name in ("key", "thread", "begin_ns", "end_ns")))
        mine = (phases.thread == self._thread[rank]) & (phases.key < len(Phase))
        begin_ns, end_ns = phases.begin_ns[mine], phases.end_ns[mine]
        phase_key, rank = phases.key[mine], rank[mine]
        order = np.lexsort((begin_ns, rank))
        begin_ns, end_ns, phase_key, rank = (
            column[order] for column in (begin_ns, end_ns, phase_key, rank)
        )
        of_steps = np.repeat(np.arange(len(self._begin_ns)), len(self._step))
        all_ranks = np.concatenate((of_steps, of_steps, rank, rank))
        times = (self._step_begin_ns.ravel(), self._step_end_ns.ravel(), begin_ns, end_ns)
        time_ns = np.concatenate(times)
        inside = self._inside(all_ranks, time_ns) | (time_ns == self.until_ns[all_ranks])
        all_ranks, time_ns = all_ranks[inside], time_ns[inside]
        key, row = np.unique(self._own.times.key(all_ranks, time_ns), return_index=True)
        all_ranks, time_ns = all_ranks[row], time_ns[row]
        first = firsts(np.bincount(all_ranks, minlength=len(self._begin_ns)))
        last = first[1:] - 1
        middle = key + np.diff(key, append=0) // 2
        step_begin, step_end = (
            self._own.times.key(of_steps, column.ravel())
            for column in (self._step_begin_ns, self._step_end_ns)
        )
        at = np.searchsorted(step_begin, middle, side="right") - 1
        step = np.where(middle < step_end[at], at % len(self._step), -1)
        phase = np.full(len(key), int(Phase.OTHER))
        if len(begin_ns):
            phase_begin, phase_end = (
                self._own.times.key(rank, column) for column in (begin_ns, end_ns)
            )
            at = np.maximum(np.searchsorted(phase_begin, middle, side="right") - 1, 0)
            within = (
                (rank[at] == all_ranks) & (phase_begin[at] <= middle) & (middle < phase_end[at])
            )
            phase = np.where(within, phase_key[at], phase)
        step[last], phase[last] = -1, -1
        own_ns = accumulated(np.maximum, self._own.at(all_ranks, time_ns), first)
        return _Borders(first, own_ns, step.astype(np.int64), phase.astype(np.int64))
