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
    """A chain of waiting ranks that leads to a culprit."""

    #: Ranks at which the chain starts.
    ranks: tuple[int, ...]
    sentence: str


@dataclass(frozen=True)
class GroupProgress:
    """Sequence numbers of a group's last collectives, by rank."""

    group: str
    description: str
    #: Ranks of the group that the dumps name.
    ranks: tuple[int, ...]
    #: Last scheduled collective. Ranks with an unknown number are left out.
    scheduled: Mapping[int, int]
    #: Last started collective. Empty unless the backend records starts.
    started: Mapping[int, int]
    #: Last completed collective. Empty if the backend does not report completions.
    completed: Mapping[int, int]
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
    #: Ranks that belong to a group but left no dump.
    missing: tuple[int, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Untold(FieldGroup):
    """Facts that are not in the dumps."""

    #: True if a culprit may wait in a message of gloo, because gloo's dumps hold no messages. If
    #: the dumps show nothing pending, any rank may wait in such a message.
    messages_untold: bool = False
    #: True if the dumps list the ranks of every group with pending operations.
    members_told: bool = True
    #: Backends that do not report to Flight Recorder whether an operation has completed.
    untold: tuple[str, ...] = ()
    #: True if all ranks arrived, but may have named different roots.
    roots_untold: bool = False
    #: True if all ranks arrived, but the sizes that ranks send to each other may not fit.
    parts_untold: bool = False
    #: True if a culprit may wait in a message whose counterpart is not in the dumps.
    others_untold: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a hang: its kind, the culprits and the ranks that wait for them."""

    #: "mismatch", "absent", "behind", "circle" and "unmatched" have the meaning of ``Cause.kind``.
    #: "undumped": the waiting ranks with a dump wait for ranks without a dump, directly or not.
    #: "arrived": all ranks arrived at the pending operations. "none": no operation is pending.
    #: "unknown": operations of the backends in ``lacks.untold`` may be pending. "members": members
    #: of a pending group are not known.
    kind: str
    culprits: tuple[Accused, ...]
    victims: tuple[int, ...]
    chains: tuple[Chain, ...]
    #: The first mismatch of each group, and its first pending mismatch. A mismatch of a completed
    #: collective is the cause only if all ranks arrived at the pending operations.
    mismatches: tuple[Mismatch, ...]
    #: Groups with operations that may be pending.
    groups: tuple[GroupProgress, ...]
    read: DumpsRead
    #: For "arrived" and "members": the operations at which the hang shows first.
    oldest: tuple[str, ...] = ()
    #: The mismatch that is the cause; None if the cause is another.
    mismatch: Mismatch | None = None
    #: Sentence on the circle, if a circle is the cause.
    difference: str = ""
    #: All-to-all whose sizes do not fit, with the reason. Empty if there is none.
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
                "It is not known which rank should send the pending messages, so no culprit can "
                "be named"
            )
        if self.kind == "members":
            waiting_in = self.oldest or [f"group {one.group!r}" for one in self.groups]
            return (
                f"Ranks wait in {listed(waiting_in)}, but the dumps do not show which ranks belong "
                f"to {'this group' if len(waiting_in) == 1 else 'these groups'}. So whether a "
                "rank did not arrive, and which rank, cannot be told"
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
            return (
                f"The waiting ranks with a dump ultimately wait for {who}, which left no readable "
                "dump"
            )
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
                f"{others} {who}; it is not known whether {who} {waits} in a send or recv, because "
                "gloo's dumps hold no messages"
            )
        if self.lacks.others_untold and self.victims:
            waits = "waits" if len(self.culprits) == 1 else "wait"
            return (
                f"{others} {who}; it is not known whether {who} {waits} for another rank in a "
                "message, because full buffers have dropped earlier records"
            )
        return f"The job hangs because of {who}" + (f"; {others} {them}" if self.victims else "")

    @property
    def _not_in_dumps(self) -> list[str]:
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
        """Describes an operation without naming its group."""
        if operation.seq < 0:
            return "a recv from any rank"
        if operation.peer < 0:
            return f"{operation.op} number {operation.seq} of their groups"
        return f"{operation.op} {'to' if operation.op == 'send' else 'from'} others"
