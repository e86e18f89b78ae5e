"""Describes a hang from Flight Recorder dumps: its cause, culprits, victims and chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commprof.analysis.collectives.mismatches import Mismatch
from commprof.analysis.late.standing import PendingOperation, Words
from commprof.analysis.late.standstill import Accused
from commprof.field_groups import FieldGroup
from commprof.recordings.flight_recorder import Dump
from commprof.text import counted, listed, named_ranks, plural


@dataclass(frozen=True)
class Chain:
    """A chain of waiting ranks, followed to its origin."""

    #: Ranks that the sentence describes; the chain starts with them.
    ranks: tuple[int, ...]
    sentence: str


@dataclass(frozen=True)
class GroupProgress:
    """Last collectives (sequence numbers) that a group's ranks scheduled, started and completed."""

    group: str
    description: str
    #: Ranks of the group that the dumps name.
    ranks: tuple[int, ...]
    #: Last sequence number by rank. Ranks with an unknown number or without a dump are left out.
    scheduled: Mapping[int, int]
    #: Sequence number of the last started collective by rank; empty unless the backend records
    #: starts.
    started: Mapping[int, int]
    completed: Mapping[int, int]
    #: Number of point-to-point messages that are known to be pending.
    pending_messages: int

    @property
    def uneven(self) -> bool:
        """True if the group's ranks are at different collectives."""
        return len({*self.scheduled.values()}) > 1 or len({*self.completed.values()}) > 1


@dataclass(frozen=True)
class DumpsRead(FieldGroup):
    """Which dumps were read, and which are missing."""

    dumps: int
    versions: tuple[str, ...]
    #: Ranks of the groups that left no dump.
    missing: tuple[int, ...]
    #: Files that cannot be read.
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Untold(FieldGroup):
    """Facts that the dumps do not show."""

    #: True if a culprit may wait in a message that is not in the dumps, because gloo's dumps hold
    #: no messages. If nothing is pending: True if any rank may wait in such a message.
    messages_untold: bool = False
    #: True if the dumps name the ranks of every group with pending operations.
    members_told: bool = True
    #: Backends that do not report to Flight Recorder whether an operation has completed.
    untold: tuple[str, ...] = ()
    #: True if all ranks arrived at operations for which ranks may have named different roots, which
    #: dumps do not hold; the next field is the same for the sizes that ranks send to each other.
    roots_untold: bool = False
    parts_untold: bool = False
    #: True if a culprit may wait in a message whose matching send or recv the dumps do not show.
    others_untold: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a hang: its kind, the culprits and the ranks that wait for them."""

    #: "mismatch", "absent", "behind", "circle", "unmatched", as in ``Cause``; "undumped": the waits
    #: of all dumped ranks lead to ranks without a dump; "arrived": all ranks arrived; "none":
    #: nothing is pending; "unknown": nothing is known to be pending, but operations of
    #: ``lacks.untold`` may be; "members": the dumps do not tell whether further ranks belong to a
    #: pending group.
    kind: str
    culprits: tuple[Accused, ...]
    #: Waiting ranks that are not culprits.
    victims: tuple[int, ...]
    chains: tuple[Chain, ...]
    #: The first mismatch of each group. A mismatch whose collective had completed is not the cause.
    mismatches: tuple[Mismatch, ...]
    #: Only groups with operations that are, or may be, pending.
    groups: tuple[GroupProgress, ...]
    read: DumpsRead
    #: If all ranks arrived, or members are not known: operations that, on each rank where they are
    #: pending, are the oldest pending operation.
    oldest: tuple[str, ...] = ()
    #: The mismatch that is the cause; None if the cause is another.
    mismatch: Mismatch | None = None
    #: If a circle is the cause: the operations in which its ranks wait, and the ranks that differ.
    difference: str = ""
    #: If the sizes of an all-to-all do not fit: the operation, and what does not fit.
    unfit: str = ""
    lacks: Untold = Untold()

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        who = named_ranks([one.rank for one in self.culprits])
        if self.kind == "none":
            elsewhere = ", ".join(self._not_in_dumps)
            return (
                "No operation is pending in these dumps: if the job hangs, it hangs "
                f"{elsewhere}, or outside of operations"
            )
        if self.kind == "unknown":
            uneven = any(one.uneven for one in self.groups)
            numbers = "different numbers" if uneven else "the same number"
            return (
                f"No operation is known to be pending: {self._untold}. The ranks with a dump "
                f"issued {numbers} of collectives"
            )
        if self.kind == "unmatched":
            return (
                "No rank is known to be waited for. It is not known which rank should send the "
                "pending messages"
            )
        if self.kind == "members":
            waiting_in = self.oldest or [f"group {one.group!r}" for one in self.groups]
            return (
                f"Ranks wait in {listed(waiting_in)}; which ranks belong to "
                f"{'this group' if len(waiting_in) == 1 else 'these groups'} is not in the dumps, "
                "so whether a rank did not arrive, and which, cannot be told"
            )
        if self.kind == "arrived":
            if self.unfit:
                return f"All ranks arrived at {self.unfit}"
            where = f", the oldest being {listed(self.oldest)}" if self.oldest else ""
            whose, or_else = "All ranks", ""
            if not self.lacks.members_told:
                whose, or_else = "All ranks with a dump", ", or a rank with no dump did not arrive"
            if self.lacks.roots_untold:
                or_else += ", or the ranks name different roots, which dumps do not hold"
            if self.lacks.parts_untold:
                or_else += ", or sizes that ranks send to each other do not fit"
            return (
                f"{whose} arrived at all pending operations{where}: the network, the backend or a "
                f"device is stuck{or_else}"
            )
        if self.kind == "undumped":
            return f"All ranks with a dump ultimately wait for {who}, which left no readable dump"
        if self.kind == "circle":
            return self.difference
        if self.kind == "mismatch":
            assert self.mismatch is not None
            number = f"number {self.mismatch.seq} of group {self.mismatch.group!r}"
            return f"The ranks issued different collectives as {number}: {self.mismatch.difference}"
        them = "it" if len(self.culprits) == 1 else "them"
        wait = "waits" if len(self.victims) == 1 else "wait"
        others = f"{counted(len(self.victims), 'other rank')} {wait} for"
        if self.lacks.messages_untold:
            waits = "waits" if len(self.culprits) == 1 else "wait"
            return (
                f"{others} {who}; whether {who} {waits} in a send or recv cannot be told, because "
                "gloo's dumps hold no messages"
            )
        if self.lacks.others_untold and self.victims:
            waits = "waits" if len(self.culprits) == 1 else "wait"
            return (
                f"{others} {who}; whether {who} {waits} for another rank in a message cannot be "
                "told, because full buffers have dropped what ranks did before"
            )
        return f"The job hangs because of {who}" + (f"; {others} {them}" if self.victims else "")

    @property
    def _not_in_dumps(self) -> list[str]:
        """Where ranks may wait in an operation if none is pending in the dumps."""
        messages = ["in a send or recv, which gloo's dumps do not hold"]
        undumped = [
            f"in an operation of {named_ranks(self.read.missing)}, which left no readable dump"
        ]
        return [
            *(messages if self.lacks.messages_untold else ()),
            *(undumped if self.read.missing else ()),
            "in an operation of another backend",
        ]

    @property
    def _untold(self) -> str:
        untold = self.lacks.untold
        which = listed([repr(name) for name in untold])
        do = "does" if len(untold) == 1 else "do"
        return (
            f"{plural(len(untold), 'backend')} {which} {do} not tell Flight Recorder when an "
            "operation completes"
        )


class DumpedWords(Words):
    """Describes groups and operations, with the job's own descriptions and global ranks."""

    def __init__(self, dumps: Sequence[Dump], members: Mapping[str, tuple[int, ...]]) -> None:
        """Takes descriptions from the dumps; members: global ranks by group."""
        self._members = members
        self._descriptions = {name: text for d in dumps for name, text in d.descriptions.items()}

    def group(self, name: str) -> str:
        """Returns the group's name with the description that the job gave it."""
        described = self._descriptions.get(name, "")
        return f"group {name!r}" + f" ({described})" * bool(described)

    def operation(self, operation: PendingOperation) -> str:
        """Describes an operation: a collective by its number, a message by its other rank.

        A message is named without its number, because ranks number messages differently.
        """
        op, where = operation.op, self.group(operation.group)
        if operation.seq < 0:
            return f"recv from any rank in {where}"
        if operation.peer < 0:
            return f"{op} number {operation.seq} of {where}"
        ranks = self._members.get(operation.group, ())
        known = operation.peer < len(ranks)
        other = f"rank {ranks[operation.peer]}" if known else "another rank"
        return f"{op} {'to' if op == 'send' else 'from'} {other} in {where}"


class WordsWithoutGroups(Words):
    """Names operations without their groups, so that many ranks share one sentence."""

    def operation(self, operation: PendingOperation) -> str:
        """Describes an operation of one of many groups."""
        if operation.seq < 0:
            return "a recv from any rank"
        if operation.peer < 0:
            return f"{operation.op} number {operation.seq} of their groups"
        return f"{operation.op} {'to' if operation.op == 'send' else 'from'} others"
