"""Reads the states of a hanging job's ranks from Flight Recorder dumps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from commprof.analysis.late.standing import (
    IN_ORDER,
    MOST_RECENT,
    Launch,
    OwnCall,
    PendingOperation,
    own_call,
)
from commprof.recordings.flight_recorder import Dump, Entry, members_of
from commprof.trace.documents import Group


@dataclass(frozen=True)
class DumpedRank:
    """State of a rank when it wrote its dump; implements ``Standing``."""

    rank: int
    world_size: int
    pending: Mapping[int, PendingOperation]
    next_seq: Mapping[str, int]
    next_message: Mapping[tuple[str, str, int], int]
    receives_any: Collection[str]
    groups: Mapping[str, Group]
    recent: Sequence[OwnCall] = ()
    #: The operation that the rank issued last; None if the dump has no operation.
    last: Entry | None = None
    #: Global ranks. This rank's messages with these ranks are numbered from the first message. Its
    #: messages with other ranks are numbered from the first pending message.
    counted: Collection[int] = ()
    #: Completed messages, by group, operation and peer.
    ended: Collection[tuple[str, str, int]] = ()


def standings(dumps: Sequence[Dump]) -> list[DumpedRank]:
    """Returns the state of each rank when it wrote its dump."""
    members = members_of(dumps)
    everybody = {rank for ranks in members.values() for rank in ranks} | {d.rank for d in dumps}
    with_messages = {entry.group for dump in dumps for entry in dump.entries if entry.is_message}
    starts = any(entry.state == "started" for dump in dumps for entry in dump.entries)
    groups = groups_by_rank(members)
    whole = frozenset(dump.rank for dump in dumps if dump.whole and not _receives_any(dump))
    return [
        _standing(
            *(d, groups.get(d.rank, {}), with_messages, len(everybody)),
            starts and not _lacks_starts(d),
            _Numbered(members, whole if d.rank in whole else frozenset()),
        )
        for d in dumps
    ]


class _Numbered:
    """Numbers the messages between a rank and each other rank.

    Numbers begin at the first message if the dumps of both ranks are whole, and if neither rank has
    issued a recv from any source. Otherwise numbers begin at the first pending message.
    """

    def __init__(self, members: Mapping[str, tuple[int, ...]], whole: frozenset[int]) -> None:
        """``whole``: ranks whose messages with this rank are numbered from the first message."""
        self._members = members
        self.whole = whole
        self.next: Counter[tuple[str, str, int]] = Counter()
        self.ended: set[tuple[str, str, int]] = set()

    def of(self, entry: Entry, is_pending: bool) -> int:
        """Returns the message's number; -1 if it is completed and only pending ones get numbers."""
        key = entry.group, entry.op, entry.peer
        if not is_pending:
            self.ended.add(key)
        ranks = self._members.get(entry.group, ())
        from_first = entry.peer < len(ranks) and ranks[entry.peer] in self.whole
        if not is_pending and not from_first:
            return -1
        self.next[key] += 1
        return self.next[key] - 1


def _receives_any(dump: Dump) -> bool:
    return any(entry.is_message and entry.peer < 0 for entry in dump.entries)


def _lacks_starts(dump: Dump) -> bool:
    """True if a rank does not record the start of operations (NCCL without timing)."""
    ended = [entry for entry in dump.entries if entry.state == "completed"]
    return bool(ended) and not any(entry.has_start for entry in dump.entries)


def undumped(rank: int, groups: Mapping[int, Mapping[str, Group]], world_size: int) -> DumpedRank:
    """Returns the state of a rank without a dump, as if it had issued nothing."""
    return DumpedRank(rank, world_size, {}, {}, {}, (), groups.get(rank, {}))


def groups_by_rank(members: Mapping[str, tuple[int, ...]]) -> dict[int, dict[str, Group]]:
    """Describes each rank's groups, by rank and name."""
    groups: defaultdict[int, dict[str, Group]] = defaultdict(dict)
    for number, (name, ranks) in enumerate(members.items()):
        for place, rank in enumerate(ranks):
            if name not in groups[rank]:
                groups[rank][name] = Group(number, name, "", "", place, len(ranks))
    return groups


def _standing(
    dump: Dump,
    groups: Mapping[str, Group],
    with_messages: Container[str],
    world_size: int,
    knows_starts: bool,
    messages: _Numbered,
) -> DumpedRank:
    pending: dict[int, PendingOperation] = {}
    # ``last_enqueued`` also counts entries that a full buffer has dropped. In a group with messages
    # it is not used, because it may count the messages too.
    next_seq = {
        name: seq + 1 for name, seq in dump.last_enqueued.items() if name not in with_messages
    }
    issued = sorted(dump.entries, key=lambda entry: entry.created_ns)[-MOST_RECENT:]
    launches = _Launches(dump.entries)
    for number, entry in enumerate(dump.entries):
        seq = entry.seq
        is_pending = entry.state in ("scheduled", "started")
        if entry.is_message and entry.peer < 0:
            seq = -1
        elif entry.is_message:
            seq = messages.of(entry, is_pending)
        else:
            next_seq[entry.group] = max(next_seq.get(entry.group, 0), seq + 1)
        if is_pending:
            pending[number] = PendingOperation(
                op=entry.op,
                group=entry.group,
                seq=seq,
                peer=entry.peer,
                bytes_in=entry.bytes_in,
                bytes_out=entry.bytes_out,
                issue_ns=entry.created_ns,
                bucket=-1,
                in_backward=False,
                started=entry.state == "started" if knows_starts else None,
                path=entry.path,
                launch=launches.of(entry, number),
            )
    return DumpedRank(
        dump.rank,
        world_size,
        pending,
        next_seq,
        dict(messages.next),
        {entry.group for entry in dump.entries if entry.is_message and entry.peer < 0},
        groups,
        [own_call(one.op, one.group, one.bytes_in, one.bytes_out, one.peer) for one in issued],
        issued[-1] if issued else None,
        messages.whole,
        messages.ended,
    )


class _Launches:
    """Finds the launch of each pending operation of a rank.

    In each group, NCCL runs collectives and batches of messages one after the other. Single
    messages between the same two ranks also run one after the other.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._sizes = Counter((entry.group, entry.seq) for entry in entries if entry.is_message)
        self._numbers: dict[tuple[str, bool, int], int] = {}

    def of(self, entry: Entry, index: int) -> Launch | None:
        if entry.backend not in IN_ORDER:
            return None
        key = entry.group, entry.is_message, entry.seq
        number = self._numbers.setdefault(key, index)
        of_several = entry.is_message and self._sizes[entry.group, entry.seq] > 1
        is_single = entry.is_message and not of_several
        queue = f"{entry.group} with {entry.peer}" if is_single else entry.group
        return Launch(queue, number, of_several)
