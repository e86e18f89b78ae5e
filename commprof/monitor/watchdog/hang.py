"""Finds out which ranks a hung job waits for, from the states of its ranks and processes.

The rules for recorded jobs (``analysis/late/standstill.py``) apply, with two additions. A job hangs
only if a step or an operation has taken longer than a limit. If processes are stopped, dead or
asleep in the kernel, only the ranks of these processes are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from commprof.analysis.collectives.mismatches import Mismatch
from commprof.analysis.late.circles import Circle
from commprof.analysis.late.standing import (
    COUNTERPART,
    IN_ORDER,
    PendingOperation,
    Waits,
    Words,
)
from commprof.analysis.late.standstill import (
    Accused,
    Cause,
    Unfit,
    accused_of,
    find_cause,
    reasons,
    waits_of,
)
from commprof.monitor.rank_state import FollowedRank
from commprof.monitor.watchdog.py_spy import MAKE_GROUPS
from commprof.text import counted, named_ranks
from commprof.trace.operations import UNEVEN, family

_NS_PER_S = 1e9
DEAD = "dead"
_MOST_ACCUSED = 2


@dataclass(frozen=True)
class HungProcess:
    """State of a rank's process, as the kernel reports it."""

    pid: int
    #: "running", or the reason why the process cannot run: "stopped", "dead", ...; empty if not
    #: known.
    state: str
    #: The state as a verb phrase, with a remedy if there is one: "is stopped ...; kill -CONT ...".
    sentence: str = ""
    #: The same phrase in the plural: "are stopped ...; kill -CONT ...".
    of_several: str = ""

    @property
    def held_up(self) -> bool:
        """True if the process cannot run."""
        return self.state not in ("", "running")


@dataclass(frozen=True)
class Hang:
    """A hang of a job or of some of its ranks."""

    #: - "mismatch": ranks issued different collectives.
    #: - "held up": a process cannot run.
    #: - "absent": ranks did not arrive at an operation.
    #: - "behind": ranks have not completed an operation that other ranks have completed.
    #: - "step": no collective is pending.
    #: - "transfer": all ranks arrived.
    #: - "circle": ranks wait for each other.
    #: - "unmatched": the sender of a message is not known.
    #: - "unseen": all ranks visible from this host arrived.
    #: - "members": some ranks of the operation's group are not known.
    kind: str
    #: Ranks at fault. If a circle has no known culprit, all ranks of the circle are accused. Empty
    #: if all ranks arrived, or if it is not known which rank is at fault.
    accused: tuple[Accused, ...]
    #: The operation in which ranks wait; None if no operation is pending.
    operation: PendingOperation | None
    #: Seconds for which ``operation`` has been pending. None if no operation is pending, or if only
    #: ranks of other hosts wait.
    pending_s: float | None
    #: Ranks at which ``operation`` is pending. Accused ranks are left out, except in a mismatch or
    #: a circle.
    waiting: tuple[int, ...]
    #: Seconds for which the oldest current step or operation has lasted.
    waited_s: float
    #: The largest step index of any rank; -1 without steps.
    step: int
    #: Phase of the first accused rank, or of a waiting rank if no rank is accused.
    phase: str
    #: Accused ranks for which ``operation`` waits.
    missing: tuple[int, ...] = ()
    #: Number of unknown ranks of the operation's group. A rank becomes known by its first call in
    #: the group.
    unknown_ranks: int = 0
    #: Ranks that may be the unknown ranks: they wait in no operation, and have issued no call in
    #: the group.
    idle: tuple[int, ...] = ()
    #: Ranks whose records cannot be read from this host.
    unseen: tuple[int, ...] = ()
    #: The collectives that differ between ranks, if they caused the hang.
    mismatch: Mismatch | None = None
    #: The circle of waiting ranks, if it caused the hang.
    circle: Circle | None = None
    #: An all-to-all whose sizes do not match, if it caused the hang.
    unfit: Unfit | None = None
    #: A mistake of the script that may have caused the hang, but that records do not show; empty if
    #: there is none.
    unseen_cause: str = ""
    #: Ranks with text on their current lines: "now at train.py:7". Ranks without text are left out.
    lines: tuple[tuple[int, str], ...] = ()

    def to_compare(self, here: Container[int]) -> list[int]:
        """Returns ranks whose current lines of code help to explain the hang, accused ranks first.

        ``here`` holds the ranks of this host. Only these ranks are returned.
        """
        parts: Sequence[tuple[object, tuple[int, ...]]] = ()
        if self.mismatch is not None:
            parts = self.mismatch.issued
        elif self.circle is not None:
            parts = self.circle.waiting
        # One rank per differing collective, or per link of the circle.
        if parts:
            compared = ([rank for rank in ranks if rank in here][:1] for _, ranks in parts)
            guilty = {accusation.rank for accusation in self.accused}
            ordered = [rank for ranks in compared for rank in ranks]
            return sorted(ordered, key=lambda rank: rank not in guilty)
        suspects = [accusation.rank for accusation in self.accused] or self.idle
        accused = [rank for rank in suspects if rank in here][:_MOST_ACCUSED]
        waiting = [rank for rank in self.waiting if rank in here and rank not in accused]
        return [*accused, *waiting[:1]]

    def at(self, lines: Mapping[int, str]) -> Hang:
        """Returns a copy of the hang whose sentence also names the ranks' current lines.

        ``lines`` holds text by rank, such as "now at train.py:7". Empty texts are ignored.
        """
        told = tuple((rank, line) for rank, line in lines.items() if line)
        mismatch = self.mismatch
        if mismatch is not None:
            issued = {**dict(told), **dict(mismatch.lines)}
            mismatch = replace(mismatch, lines=tuple(sorted(issued.items())))
        return replace(self, lines=told, mismatch=mismatch)

    @property
    def sentence(self) -> str:
        """The diagnosis in one sentence."""
        text = f"{self._finding}{self._on_groups}"
        if self.mismatch is not None or self.circle is not None or not self.lines:
            return text
        return f"{text}; {', '.join(f'rank {rank}: {line}' for rank, line in self.lines)}"

    @property
    def _on_groups(self) -> str:
        called = [
            text
            for name, text in MAKE_GROUPS.items()
            if any(line.endswith(f", in {name}") for _, line in self.lines)
        ]
        return "".join(f"; {text}" for text in called)

    @property
    def _finding(self) -> str:
        where = f"step {self.step}" if self.step >= 0 else "before the first step"
        lasts = f"stuck for {self.waited_s:.1f} s"
        stuck = f"no collective is pending ({where}, {lasts})"
        if self.kind == "step":
            who = named_ranks([accusation.rank for accusation in self.accused])
            return f"{who}: {stuck}; last seen: {self.phase}"
        why = "; ".join(reasons(self.accused))
        if self.operation is None:
            return f"{why}; {stuck}"
        if self.pending_s is not None:
            lasts = f"pending for {self.pending_s:.1f} s"
        asked = f"{self.operation} ({where}, {lasts})"
        if self.mismatch is not None:
            number = f"collective number {self.mismatch.seq} of group {self.mismatch.group!r}"
            differs = f"ranks issued different collectives as {number}: {self.mismatch.difference}"
            if self.operation.seq == self.mismatch.seq:
                return f"{differs} ({where}, {lasts})"
            return f"{differs}; {named_ranks(self.waiting)} in {asked}"
        if self.kind == "unseen":
            hidden = f"the records of {named_ranks(self.unseen)} are not visible"
            return f"all ranks visible from this host arrived at {asked}; {hidden}"
        if self.kind == "unmatched":
            waits = "waits" if len(self.waiting) == 1 else "wait"
            return f"{named_ranks(self.waiting)} {waits} in {asked}; the sender is not known"
        if self.kind == "members":
            waits = "waits" if len(self.waiting) == 1 else "wait"
            have = "has" if self.unknown_ranks == 1 else "have"
            idle = ""
            if self.idle:
                none = f"wait{'s' * (len(self.idle) == 1)} in no operation"
                idle = f"; {named_ranks(self.idle)} {none}"
            return (
                f"{named_ranks(self.waiting)} {waits} in {asked}; "
                f"{counted(self.unknown_ranks, 'rank')} of the group {have} issued no call in the "
                f"group, and it is not known which{idle}"
            )
        if self.kind == "transfer" and self.unfit is not None:
            return f"all ranks arrived at {asked}: {self.unfit.sentence}"
        if self.kind == "transfer":
            or_else = f", or {self.unseen_cause}" if self.unseen_cause else ""
            return (
                f"all ranks arrived at {asked}, but the network or backend does not complete it"
                f"{or_else}"
            )
        late = [accusation for accusation in self.accused if not accusation.behind]
        if self.kind == "behind":
            return f"{why} ({where}, {lasts})"
        if self.circle is not None:
            differs = self.circle.difference(Words(), dict(self.lines))
            return f"{named_ranks(self.circle.ranks)} {differs} ({where}, {lasts})"
        wait = f"{named_ranks(self.waiting)} wait{'s' * (len(self.waiting) == 1)}"
        if self.kind == "held up":
            return f"{why}; last seen: {self.phase}; {wait} in {asked}"
        more = "".join(f"; {why}" for why in reasons(a for a in self.accused if a.behind))
        missed = f"{Words().missed(self.operation)} ({where}, {lasts})"
        absent = [accusation.rank for accusation in late]
        elsewhere = [rank for rank in absent if rank not in self.missing] if self.missing else []
        if elsewhere:
            absent = [rank for rank in absent if rank in self.missing]
            are = "is" if len(elsewhere) == 1 else "are"
            more = f"; {named_ranks(elsewhere)} {are} waited for in other operations{more}"
        return f"{named_ranks(absent)} {missed}; last seen: {self.phase}; {wait}{more}"


def find_hang(
    states: Sequence[FollowedRank],
    processes: Mapping[int, HungProcess],
    limit_ns: int,
    now_ns: int,
    unseen: Sequence[int] = (),
    mismatches: Callable[[], Sequence[Mismatch]] = tuple,
) -> Hang | None:
    """Finds out whether a step or collective has exceeded the limit; None if there is no hang.

    Args:
        states: states of the ranks whose records can be read.
        processes: processes of this host's ranks, by rank. Only these ranks are compared with the
            limit, because other hosts have other clocks.
        limit_ns: longest time that a step or collective may take.
        now_ns: current time of ``CLOCK_MONOTONIC``.
        unseen: ranks whose records cannot be read from this host.
        mismatches: returns the collectives that differ between ranks. It is called only if the
            limit is exceeded.
    """
    alive = {rank for rank, process in processes.items() if process.state != DEAD}
    watched = [state for state in states if state.rank in alive]
    # This check comes first, because ``waits_of`` takes long in large jobs.
    if all(_age_ns(one, one.pending.values(), now_ns) <= limit_ns for one in watched):
        return None
    edges = waits_of(states)
    ages = {one.rank: _age_ns(one, _known_to_pend(one, edges), now_ns) for one in watched}
    overdue = [state for state in states if ages.get(state.rank, 0) > limit_ns]
    if not overdue:
        return None
    waited_s = max(ages.values()) / _NS_PER_S
    closed = {state.rank for state in states if state.closed}
    held_up = [
        Accused(
            rank,
            process.sentence or f"is {process.state}",
            process.of_several or f"are {process.state}",
        )
        for rank, process in sorted(processes.items())
        if process.held_up and rank not in closed
    ]
    cause = find_cause(states, edges, mismatches())
    kind, accused = _accuse(states, overdue, edges, cause)
    if kind == "transfer":
        kind = "unseen" if unseen else "members" if _unknown_members(states) else kind
    if held_up:
        kind, accused = "held up", tuple(held_up)
    mismatch = cause.mismatch if kind == "mismatch" else None
    hang = _described(kind, accused, states, edges, processes, now_ns, mismatch)
    circle = cause.circle if kind == "circle" else None
    unfit = cause.unfit if kind == "transfer" else None
    hang = replace(hang, unseen=tuple(unseen), waited_s=waited_s, circle=circle, unfit=unfit)
    if kind != "transfer" or hang.operation is None:
        return hang
    return replace(hang, unseen_cause=_unseen_cause(hang.operation, states))


def _unseen_cause(operation: PendingOperation, states: Sequence[FollowedRank]) -> str:
    """Returns a mistake of the script that may block an operation although all ranks arrived.

    Records do not show such a mistake. Empty if none is possible.
    """
    if family(operation.op) in UNEVEN:
        return "sizes that ranks send to each other do not fit"
    groups = [state.groups[operation.group] for state in states if operation.group in state.groups]
    backends = {group.backend for group in groups}
    if operation.op in COUNTERPART and backends == {"gloo"}:
        return "its send and recv have different tags"
    if operation.op in COUNTERPART and backends and backends <= {*IN_ORDER}:
        return "ranks that send to each other do so before they receive"
    return ""


def _unknown_members(
    states: Sequence[FollowedRank],
) -> list[tuple[PendingOperation, FollowedRank, int]]:
    """Lists the pending collectives of groups that have unknown ranks.

    A rank of a group is unknown until its first call in the group. Each collective comes with the
    rank that issued it, and with the number of unknown ranks.
    """
    used = Counter(name for state in states for name in state.groups)
    lacking = []
    for state in states:
        for operation in state.pending.values():
            group = state.groups.get(operation.group)
            is_untold = operation.silent and operation != state.waiting_for
            if group is None or operation.peer >= 0 or is_untold:
                continue
            if group.size > used[operation.group]:
                lacking.append((operation, state, group.size - used[operation.group]))
    return lacking


def _known_to_pend(state: FollowedRank, edges: Mapping[int, Waits]) -> list[PendingOperation]:
    """Returns a rank's operations that are certainly pending.

    If an operation may complete without a record, it counts only while it waits for other ranks.
    """
    loud = [one for one in state.pending.values() if not one.silent]
    return loud + [operation for operation, _ in edges[state.rank]]


def _age_ns(state: FollowedRank, operations: Iterable[PendingOperation], now_ns: int) -> int:
    if state.closed:
        return 0
    begins = [operation.issue_ns for operation in operations]
    # The first step is not counted: the script may be setting up, or may not mark steps at all.
    if state.steps_ended:
        begins.append(state.step_begin_ns)
    return max((now_ns - begin for begin in begins), default=0)


def _accuse(
    states: Sequence[FollowedRank],
    overdue: Sequence[FollowedRank],
    edges: Mapping[int, Waits],
    cause: Cause,
) -> tuple[str, tuple[Accused, ...]]:
    if cause.ranks or cause.mismatch is not None:
        by_rank = {state.rank: state for state in states}
        return cause.kind, accused_of(cause, edges, Words(), lambda rank: _absent(by_rank[rank]))
    if any(state.waiting_for is not None for state in overdue):
        return "unmatched" if cause.kind == "unmatched" else "transfer", ()
    return "step", tuple(map(_absent, overdue))


def _absent(state: FollowedRank) -> Accused:
    step = f"in step {state.step}, {state.phase}" if state.step >= 0 else state.phase
    if state.closed:
        return Accused(
            state.rank,
            "has closed its trace: its script or its recording has ended",
            "have closed their traces: their scripts or their recordings have ended",
        )
    if not state.last_ns:
        return Accused(state.rank, "has recorded nothing", "have recorded nothing")
    return Accused(state.rank, f"was last seen {step}", f"were last seen {step}")


def _described(
    kind: str,
    accused: tuple[Accused, ...],
    states: Sequence[FollowedRank],
    edges: Mapping[int, Waits],
    here: Collection[int],
    now_ns: int,
    mismatch: Mismatch | None = None,
) -> Hang:
    guilty = {one.rank for one in accused}
    asked = [
        (operation, state)
        for state in states
        for operation, ranks in edges[state.rank]
        if kind == "circle" or not guilty or guilty & set(ranks)
    ]
    if kind == "behind":
        asked = [
            (state.waiting_for, state)
            for state in states
            if state.rank in guilty and state.waiting_for is not None
        ]
    unknown = _unknown_members(states) if kind == "members" else []
    if unknown:
        asked = [(operation, state) for operation, state, _ in unknown]
    if mismatch is not None:
        asked = [
            (one, state)
            for state in states
            for one in state.pending.values()
            if one.peer < 0 and (one.group, one.seq) == (mismatch.group, mismatch.seq)
        ]
    if not asked:  # no rank is known to wait for an accused rank
        asked = [
            (state.waiting_for, state)
            for state in states
            if state.waiting_for is not None and state.rank not in guilty
        ] or [(s.waiting_for, s) for s in states if s.waiting_for is not None]
    asked = [(one, state) for one, state in asked if state.rank in here] or asked
    operation, witness = min(asked, key=lambda item: item[0].issue_ns, default=(None, states[0]))
    waiting: tuple[int, ...] = ()
    pending_s: float | None = None
    if operation is not None:
        if mismatch is not None:
            guilty = set()  # the accused ranks wait as well
        if witness.rank in here:
            pending_s = (now_ns - operation.issue_ns) / _NS_PER_S
        waiting = tuple(
            state.rank
            for state in states
            if (kind == "circle" or state.rank not in guilty)
            and any(_same(one, operation) for one in state.pending.values())
        )
    seen = next((s for s in states if s.rank in guilty), witness)
    step = max((state.step for state in states), default=-1)
    absent = {rank for part, ranks in edges[witness.rank] if part is operation for rank in ranks}
    group = "" if operation is None else operation.group
    return Hang(
        *(kind, accused, operation, pending_s, waiting, 0.0, step, seen.phase),
        missing=tuple(sorted(absent & guilty)),
        unknown_ranks=next((count for part, _, count in unknown if part is operation), 0),
        idle=tuple(
            state.rank
            for state in states
            if unknown and not state.pending and not state.closed and group not in state.groups
        ),
        mismatch=mismatch,
    )


def _same(operation: PendingOperation, other: PendingOperation) -> bool:
    if other.peer >= 0:
        return operation is other
    return operation.peer < 0 and (operation.group, operation.seq) == (other.group, other.seq)
