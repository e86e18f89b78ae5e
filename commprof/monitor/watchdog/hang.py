"""Which rank a job waits for when it stands still. States in, an accusation out.

``analysis/late/standstill.py`` has the rule. Here it is asked of running processes: a step or a
collective must have taken too long, and a process that is stopped, dead, or asleep in the kernel
comes before all else, because its records end where it stopped. If all ranks have arrived, the
transfer itself does not move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from commprof.analysis.late.standstill import Operation, Waits, find_cause, waits_of
from commprof.monitor.rank_state import RankState
from commprof.text import named_ranks

_NS_PER_S = 1e9
#: State of a process that has ended: it waits for nobody.
DEAD = "dead"


@dataclass(frozen=True)
class Process:
    """State of a rank's process, as the system tells it."""

    pid: int
    #: "running", or why it cannot move: "stopped", "dead", ...; empty where it cannot be known.
    state: str
    #: The same in words, with what to do.
    sentence: str = ""

    @property
    def held_up(self) -> bool:
        """True if the process cannot go on by itself."""
        return self.state not in ("", "running")


@dataclass(frozen=True)
class Accused:
    """A rank that the others wait for."""

    rank: int
    #: In a sentence.
    why: str
    #: Whether it arrived, and has not completed what other ranks have.
    behind: bool = False


@dataclass(frozen=True)
class Hang:
    """A job, or a part of it, that stands still."""

    #: "held up": a process cannot move; "absent": ranks did not arrive; "behind": ranks have not
    #: completed what others have; "step": no collective is pending; "transfer": all have
    #: arrived; "circle": ranks wait for each other; "unseen": those that can be seen from here
    #: have arrived.
    kind: str
    #: Empty where all have arrived.
    accused: tuple[Accused, ...]
    #: What they did not arrive at, as a rank that waits issued it; None where none is pending.
    operation: Operation | None
    #: Seconds since the first of them issued it; 0 without one.
    pending_s: float
    #: Who waits in it, by what they issued.
    waiting: tuple[int, ...]
    #: How long the longest step or collective has taken by now.
    waited_s: float
    #: Which step the ranks are in, as the one that waits says; -1 without steps.
    step: int
    #: Where in its step the first accused, or else the first that waits, is.
    phase: str
    #: Ranks that run elsewhere and keep no records there.
    unseen: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """The whole finding in one sentence."""
        where = f"step {self.step}" if self.step >= 0 else "no step"
        if self.kind == "step":
            who = named_ranks([one.rank for one in self.accused])
            return f"{who} in {where} for {self.waited_s:.1f} s ({self.phase}), in no collective"
        why = "; ".join(one.why for one in self.accused)
        if self.operation is None:
            return f"{why}; nothing was pending for {self.waited_s:.1f} s in {where}"
        asked = f"{self.operation} ({where}, pending for {self.pending_s:.1f} s)"
        if self.kind == "unseen":
            hidden = f"of {named_ranks(self.unseen)} nothing can be seen from here"
            return f"all ranks seen from here arrived at {asked}; {hidden}"
        if self.kind == "transfer":
            return f"all ranks arrived at {asked}, and it does not complete: network or backend"
        late = [one for one in self.accused if not one.behind]
        if self.kind == "behind":
            return f"{why} ({where}, pending for {self.pending_s:.1f} s)"
        who = named_ranks([one.rank for one in late])
        if self.kind == "circle":
            return f"{who} wait for each other, {named_ranks(self.waiting)} in {asked}"
        wait = f"{named_ranks(self.waiting)} wait{'s' * (len(self.waiting) == 1)}"
        if self.kind == "held up":
            return f"{why}; last seen in {where}, {self.phase}; {wait} in {asked}"
        more = "".join(f"; {one.why}" for one in self.accused if one.behind)
        return f"{who} did not arrive at {asked}; last seen: {self.phase}; {wait}{more}"


def find_hang(
    states: Sequence[RankState],
    processes: Mapping[int, Process],
    limit_ns: int,
    now_ns: int,
    unseen: Sequence[int] = (),
) -> Hang | None:
    """Finds a hang: a step or collective that has taken longer than the limit.

    Args:
        states: of the ranks whose records can be seen.
        processes: of those of this host, by rank; only their times can be compared with now_ns.
        limit_ns: see ``thresholds``.
        now_ns: by the clock of the records.
        unseen: ranks of which nothing can be known from here.
    """
    edges = {state.rank: waits_of(state, states) for state in states}
    ages = {
        state.rank: _age_ns(state, edges[state.rank], now_ns)
        for state in states
        if state.rank in processes and processes[state.rank].state != DEAD
    }
    overdue = [state for state in states if ages.get(state.rank, 0) > limit_ns]
    if not overdue:
        return None
    waited_s = max(ages.values()) / _NS_PER_S
    closed = {state.rank for state in states if state.closed}
    held_up = [
        Accused(rank, f"rank {rank} {process.sentence or f'is {process.state}'}")
        for rank, process in sorted(processes.items())
        if process.held_up and rank not in closed
    ]
    kind, accused = _accuse(states, overdue, edges)
    if kind == "transfer" and unseen:
        kind = "unseen"
    if held_up:
        kind, accused = "held up", tuple(held_up)
    found = _described(kind, accused, states, edges)
    asked = found.operation
    pending_s = (now_ns - asked.issue_ns) / _NS_PER_S if asked is not None else 0.0
    return replace(found, unseen=tuple(unseen), pending_s=pending_s, waited_s=waited_s)


def _age_ns(state: RankState, edges: Waits, now_ns: int) -> int:
    """For how long its step, or an operation that it waits for, has been under way."""
    if state.closed:
        return 0
    # One whose completion is not recorded is pending for sure only while somebody is absent.
    begins = [one.issue_ns for one in state.pending.values() if not one.silent]
    begins += [operation.issue_ns for operation, _ in edges]
    # Before the first step ended, the script sets up, or does not mark steps at all.
    if state.steps_ended:
        begins.append(state.step_begin_ns)
    return max((now_ns - begin for begin in begins), default=0)


def _accuse(
    states: Sequence[RankState], overdue: Sequence[RankState], edges: Mapping[int, Waits]
) -> tuple[str, tuple[Accused, ...]]:
    cause = find_cause(states, edges)
    by_rank = {state.rank: state for state in states}
    if cause.kind == "circle":
        why = (Accused(rank, f"rank {rank} waits in {edges[rank][0][0]}") for rank in cause.ranks)
        return "circle", tuple(why)
    if cause.ranks:
        return cause.kind, tuple(
            Accused(rank, _behind(rank, cause.behind[rank]), behind=True)
            if rank in cause.behind
            else Accused(rank, _doing(by_rank[rank]))
            for rank in cause.ranks
        )
    if any(state.waiting_for is not None for state in overdue):
        return "transfer", ()
    return "step", tuple(Accused(state.rank, _doing(state)) for state in overdue)


def _behind(rank: int, operation: Operation) -> str:
    return f"rank {rank} has not completed {operation}, which other ranks have"


def _doing(state: RankState) -> str:
    step = f"in step {state.step}, {state.phase}" if state.step >= 0 else state.phase
    if state.closed:
        return f"rank {state.rank} has closed its trace: its script, or its recording, is over"
    if not state.last_ns:
        return f"rank {state.rank} has recorded nothing"
    return f"rank {state.rank} was last seen {step}"


def _described(
    kind: str,
    accused: tuple[Accused, ...],
    states: Sequence[RankState],
    edges: Mapping[int, Waits],
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
    if not asked:  # all have arrived, or a held-up rank had
        asked = [
            (state.waiting_for, state)
            for state in states
            if state.waiting_for is not None and state.rank not in guilty
        ] or [(s.waiting_for, s) for s in states if s.waiting_for is not None]
    operation, witness = min(asked, key=lambda item: item[0].issue_ns, default=(None, states[0]))
    waiting: tuple[int, ...] = ()
    if operation is not None:
        waiting = tuple(
            state.rank
            for state in states
            if (kind == "circle" or state.rank not in guilty)
            and any(_same(one, operation) for one in state.pending.values())
        )
    seen = next((s for s in states if s.rank in guilty), witness)
    step = max((state.step for state in states), default=-1)
    return Hang(kind, accused, operation, 0.0, waiting, 0.0, step, seen.phase)


def _same(one: Operation, other: Operation) -> bool:
    if other.peer >= 0:
        return one is other
    return one.peer < 0 and (one.group, one.seq) == (other.group, other.seq)
