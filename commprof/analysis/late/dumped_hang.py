"""Diagnoses a hang from Flight Recorder dumps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from commprof.analysis.collectives.issuing_lines import lines_of_parts
from commprof.analysis.collectives.mismatches import (
    Issued,
    Mismatch,
    common_bytes,
    mismatch_of,
    usual_after,
    with_lines,
)
from commprof.analysis.late.chains import chains_to
from commprof.analysis.late.circles import Circle
from commprof.analysis.late.dumped_diagnosis import (
    Diagnosis,
    DumpedWords,
    DumpsRead,
    GroupProgress,
    Untold,
    WordsWithoutGroups,
)
from commprof.analysis.late.dumped_ranks import (
    DumpedRank,
    groups_by_rank,
    standings,
    undumped,
)
from commprof.analysis.late.issue_order import key_of
from commprof.analysis.late.standing import (
    COUNTERPART,
    PendingOperation,
    Waits,
    Words,
    oldest_first,
)
from commprof.analysis.late.standstill import (
    Accused,
    Cause,
    Unfit,
    accused_of,
    find_cause,
    waits_of,
)
from commprof.recordings.flight_recorder import (
    UNTOLD,
    Dump,
    members_of,
    read_dumps,
)
from commprof.text import counted, named_ranks
from commprof.trace.operations import UNEVEN, codes_of
from commprof.trace.schema import OPS, ROOTED, comes_before

#: If more culprits than this are missing in different groups, the groups are not named.
_MOST_ALONE = 10


def diagnosis(path: Path) -> Diagnosis:
    """Diagnoses a hang from a folder of Flight Recorder dumps, or from one dump.

    Raises:
        TraceError: no dump can be read.
    """
    dumps, problems = read_dumps(path)
    states = standings(dumps)
    members = members_of(dumps)
    seen = {dump.rank for dump in dumps}
    missing = tuple(sorted({r for ranks in members.values() for r in ranks} - seen))
    groups = groups_by_rank(members) if missing else {}
    everybody = [*states, *(undumped(r, groups, states[0].world_size) for r in missing)]
    every_wait = waits_of(everybody)
    waits = _supported(every_wait, dumps, states)
    mismatches = _mismatches(dumps)
    cause = find_cause(everybody, waits, mismatches)
    lacks_members = _may_lack_members(dumps, states, members)
    if cause.circle is not None and cause.circle.issued and (lacks_members or waits != every_wait):
        cause = Cause("arrived", (), {})  # another rank may not have issued these operations
    words = DumpedWords(dumps, members)
    doubtful = {rank for rank, operations in every_wait.items() if waits[rank] != operations}
    kind, culprits = _culprits(cause, states, waits, words, doubtful)
    untold = {e.backend for dump in dumps for e in dump.entries if e.state == UNTOLD}
    if kind == "none" and untold:
        kind = "unknown"
    if kind == "arrived" and waits != every_wait:
        kind = "unmatched"
    if kind == "arrived" and lacks_members:
        kind = "members"
    ranks = [one.rank for one in culprits]
    return Diagnosis(
        kind=kind,
        culprits=culprits,
        victims=tuple(s.rank for s in states if s.pending and s.rank not in ranks),
        chains=chains_to(
            [state.rank for state in states],
            *((waits, ranks) if cause.mismatch is None else _to_mismatch(cause.mismatch, waits)),
            words,
        ),
        mismatches=mismatches,
        groups=_progress(dumps, states, members),
        read=DumpsRead(
            dumps=len(dumps),
            versions=tuple(sorted({dump.version for dump in dumps})),
            missing=missing,
            problems=tuple(problems),
        ),
        oldest=_oldest_of_all(states, words) if kind in ("arrived", "members") else (),
        mismatch=cause.mismatch,
        difference="" if cause.circle is None else _difference(cause.circle, words),
        unfit=_unfit_text(cause.unfit, words) if kind == "arrived" else "",
        lacks=Untold(
            messages_untold=_may_wait_in_a_message(kind, dumps, states, culprits),
            members_told=_pending_groups(states) <= _told_groups(dumps),
            untold=tuple(sorted(untold)),
            others_untold=kind == "absent"
            and any(accused.rank in doubtful and not accused.behind for accused in culprits),
            **_unrecorded(states) if kind == "arrived" else {},
        ),
    )


def _to_mismatch(
    mismatch: Mismatch, waits: Mapping[int, Waits]
) -> tuple[Mapping[int, Waits], list[int]]:
    """Returns the waits that lead to a mismatch, and the ranks of the mismatch.

    Of the mismatch's group, only earlier calls are kept: the ranks are stuck in the mismatch.
    """
    before = {
        rank: [
            (operation, absent)
            for operation, absent in operations
            if operation.peer >= 0
            or operation.group != mismatch.group
            or comes_before(operation.seq, mismatch.seq)
        ]
        for rank, operations in waits.items()
    }
    return before, [rank for rank, _ in mismatch.issue_ns]


def _unfit_text(unfit: Unfit | None, words: Words) -> str:
    return "" if unfit is None else f"{_with_line(unfit.operation, words)}: {unfit.sentence}"


def _unrecorded(states: Sequence[DumpedRank]) -> dict[str, bool]:
    ops = {oldest_first(state)[0].op for state in states if state.pending}
    codes = {OPS.index(op) for op in ops if op in OPS}
    return {
        "roots_untold": bool(codes & {*ROOTED}),
        "parts_untold": bool(codes & {*codes_of(*UNEVEN)}),
    }


def _difference(circle: Circle, words: Words) -> str:
    parts = [ranks for _, ranks in circle.waiting]
    paths = {
        rank: operation.path
        for operation, ranks in circle.waiting
        for rank in ranks
        if operation.path
    }
    lines = dict(lines_of_parts(paths, parts))
    return f"{named_ranks(circle.ranks)} {circle.difference(words, lines)}"


def _may_lack_members(
    dumps: Sequence[Dump], states: Sequence[DumpedRank], members: Mapping[str, tuple[int, ...]]
) -> bool:
    """True if further ranks with a dump may belong to a group with pending operations.

    If no dump lists the members of a group, only ranks that used the group are known.
    """
    dumped = {dump.rank for dump in dumps}
    untold = _pending_groups(states) - _told_groups(dumps)
    return any(dumped - {*members[group]} for group in untold)


def _pending_groups(states: Sequence[DumpedRank]) -> set[str]:
    return {one.group for state in states for one in state.pending.values()}


def _told_groups(dumps: Sequence[Dump]) -> set[str]:
    return {group for dump in dumps for group in dump.members}


def _may_wait_in_a_message(
    kind: str, dumps: Sequence[Dump], states: Sequence[DumpedRank], culprits: Sequence[Accused]
) -> bool:
    """Returns ``Untold.messages_untold``."""
    guilty = {accused.rank for accused in culprits if not accused.behind}
    idle = {state.rank for state in states if state.rank in guilty and not state.pending}
    backends = {entry.backend for dump in dumps for entry in dump.entries}
    if kind == "none":
        return "gloo" in backends
    return kind == "absent" and bool(idle) and backends == {"gloo"} and len(dumps) > 1


def _supported(
    waits: Mapping[int, Waits], dumps: Sequence[Dump], states: Sequence[DumpedRank]
) -> Mapping[int, Waits]:
    """Leaves out waits for messages whose counterpart the other rank may have issued already.

    The counterpart of a send is its recv, and vice versa. If messages have no common numbers, only
    pending messages are matched. A counterpart that was issued may then be missing for two reasons.
    The other rank's full buffer may have dropped it, or it may have completed, although this rank's
    call is in a batch that is pending.
    """
    since_ns = {dump.rank: dump.since_ns for dump in dumps}
    by_rank = {state.rank: state for state in states}

    def is_certain(rank: int, operation: PendingOperation, other: int) -> bool:
        if operation.peer < 0 or other in by_rank[rank].counted:
            return True
        if since_ns.get(other, 0) > operation.issue_ns:
            return False
        key = operation.group, COUNTERPART[operation.op], by_rank[rank].groups[operation.group].rank
        in_launch = operation.launch is not None and operation.launch.of_several
        return not (in_launch and other in by_rank and key in by_rank[other].ended)

    return {
        rank: [
            (operation, ranks)
            for operation, absent in found
            if (ranks := tuple(other for other in absent if is_certain(rank, operation, other)))
        ]
        for rank, found in waits.items()
    }


def _oldest_of_all(states: Sequence[DumpedRank], words: Words) -> tuple[str, ...]:
    """Describes the collectives at which the hang shows first.

    Such a collective is the oldest pending operation on every rank where it is pending.
    """
    first = {
        state.rank: min(state.pending.values(), key=lambda one: one.issue_ns)
        for state in states
        if state.pending
    }
    having: dict[tuple[str, int], list[int]] = {}
    for state in states:
        for one in state.pending.values():
            if one.peer < 0 and one.seq >= 0:
                having.setdefault((one.group, one.seq), []).append(state.rank)
    return tuple(
        _with_line(first[ranks[0]], words)
        for key, ranks in having.items()
        if all((first[rank].group, first[rank].seq) == key for rank in ranks)
    )


def _culprits(
    cause: Cause,
    states: Sequence[DumpedRank],
    waits: Mapping[int, Waits],
    words: Words,
    doubtful: Container[int],
) -> tuple[str, tuple[Accused, ...]]:
    """``doubtful``: ranks that may wait for other ranks in a message."""
    pending = {(one.group, one.seq) for state in states for one in state.pending.values()}
    if not pending:
        return "none", ()
    by_rank = {state.rank: state for state in states}
    certain = tuple(rank for rank in cause.ranks if rank in by_rank)
    if certain or cause.mismatch is not None:
        told = replace(cause, ranks=certain)
        words = _short_for(certain, waits, words)

        def absent(rank: int) -> Accused:
            return _absent(by_rank[rank], waits, words, rank in doubtful)

        whys = accused_of(told, waits, words, absent)
        behind = bool(certain) and all(rank in cause.behind for rank in certain)
        return "behind" if behind else cause.kind, whys
    if cause.ranks:
        words = _short_for(cause.ranks, waits, words)
        return "undumped", tuple(
            Accused(
                rank,
                f"{_missed(rank, waits, words)}; it left no readable dump",
                f"{_missed(rank, waits, words)}; they left no readable dump",
            )
            for rank in cause.ranks
        )
    return cause.kind, ()


def _short_for(ranks: Sequence[int], waits: Mapping[int, Waits], words: Words) -> Words:
    if len(ranks) <= _MOST_ALONE:
        return words
    missed: dict[int, set[str]] = {rank: set() for rank in ranks}
    absent_in = {(op.group, op.seq): absent for found in waits.values() for op, absent in found}
    for (group, _), absent in absent_in.items():
        for rank in missed.keys() & {*absent}:
            missed[rank].add(group)
    sets = {frozenset(groups) for groups in missed.values()}
    return WordsWithoutGroups() if len(sets) > _MOST_ALONE else words


def _absent(
    state: DumpedRank, waits: Mapping[int, Waits], words: Words, is_doubtful: bool
) -> Accused:
    first, count = _first_missed(state.rank, waits), len(state.pending)
    missed = words.missed(first) + _line_of(first)
    several = missed
    issued = [part for part in state.pending.values() if key_of(part) == key_of(first)]
    if issued:
        missed, several = (
            f"{have} not begun {_with_line(issued[0], words)}" for have in ("has", "have")
        )
    before = "nothing pending"
    if count:
        oldest = oldest_first(state)[0]
        others = (
            "whose counterparts on other ranks may be missing in the dumps"
            if is_doubtful
            else "at which all ranks arrived"
        )
        stuck = ""
        if issued and not is_doubtful:
            stuck = ", which the network, the backend or a device may be unable to complete"
        before = (
            f"{counted(count, 'pending operation')}, {others}{', the oldest' * (count > 1)}: "
            f"{_with_line(oldest, words)}{_without_root(oldest)}{stuck}"
        )
    last = ""
    if state.last is not None and state.last.line:
        last = f"; the last call was {state.last.op} at {state.last.line}"
    return Accused(
        state.rank, f"{missed}; it has {before}{last}", f"{several}; they have {before}{last}"
    )


def _without_root(operation: PendingOperation) -> str:
    is_rooted = operation.op in OPS and OPS.index(operation.op) in ROOTED
    return ", whose root is not in the dumps" if is_rooted else ""


def _missed(rank: int, waits: Mapping[int, Waits], words: Words) -> str:
    first = _first_missed(rank, waits)
    return words.missed(first) + _line_of(first)


def _first_missed(rank: int, waits: Mapping[int, Waits]) -> PendingOperation:
    missed = [op for operations in waits.values() for op, absent in operations if rank in absent]
    return min(missed, key=lambda operation: (operation.peer >= 0, operation.issue_ns))


def _with_line(operation: PendingOperation, words: Words) -> str:
    return words.operation(operation) + _line_of(operation)


def _line_of(operation: PendingOperation) -> str:
    return f" ({operation.line})" if operation.line else ""


def _mismatches(dumps: Sequence[Dump]) -> tuple[Mismatch, ...]:
    """Returns the first mismatch of each group, and also its first pending mismatch."""
    mixed = _mixed_groups(dumps)
    if not mixed:
        return ()
    issued: dict[tuple[str, int], dict[int, tuple[Issued, int]]] = {}
    paths: dict[str, dict[int, dict[int, str]]] = {}
    pending: set[tuple[str, int]] = set()
    for dump in dumps:
        for entry in dump.entries:
            if entry.is_message or entry.group not in mixed:
                continue
            # Entries of one coalesced launch share a sequence number: the first entry represents
            # the launch.
            key = entry.group, entry.seq
            what = _issued(entry.op, entry.bytes_in, entry.bytes_out, entry.dtype)
            issued.setdefault(key, {}).setdefault(dump.rank, (what, entry.created_ns))
            if entry.path:
                of_group = paths.setdefault(entry.group, {})
                of_group.setdefault(entry.seq, {}).setdefault(dump.rank, entry.path)
            if entry.state in ("scheduled", "started"):
                pending.add(key)
    first: dict[tuple[str, bool], Mismatch] = {}
    earlier: dict[str, list[Issued]] = {}
    last_mixed: dict[str, int] = {}
    for (group, seq), members in sorted(issued.items()):
        values = _comparable([what for what, _ in members.values()])
        if len({*values}) == 1:
            earlier.setdefault(group, []).append(values[0])
            continue
        which = group, (group, seq) in pending
        agree_since, last_mixed[group] = last_mixed.get(group, -1) + 1, seq
        if which not in first and (group, True) not in first:
            compared = {
                rank: (value, issue_ns)
                for (rank, (_, issue_ns)), value in zip(members.items(), values, strict=True)
            }
            usual = usual_after(earlier.get(group, []))
            differing = mismatch_of(group, seq, compared, usual)
            first[which] = with_lines(differing, paths.get(group, {}), agree_since)
    return tuple(first.values())


def _mixed_groups(dumps: Sequence[Dump]) -> set[str]:
    first: dict[tuple[str, int], tuple[str, int, int, str]] = {}
    mixed = set()
    for dump in dumps:
        own = set[tuple[str, int]]()
        for entry in dump.entries:
            key = entry.group, entry.seq
            if entry.is_message or key in own:
                continue
            own.add(key)
            what = entry.op, entry.bytes_in, entry.bytes_out, entry.dtype
            if first.setdefault(key, what) != what:
                mixed.add(entry.group)
    return mixed


def _comparable(issued: Sequence[Issued]) -> list[Issued]:
    if len({one.op for one in issued}) > 1:
        return list(issued)
    sized = all(one.size_bytes >= 0 for one in issued)
    typed = all(one.dtype for one in issued)
    if sized and typed:
        return list(issued)
    return [
        replace(one, size_bytes=one.size_bytes if sized else -1, dtype=one.dtype if typed else "")
        for one in issued
    ]


@lru_cache(maxsize=1 << 14)
def _issued(op: str, bytes_in: int, bytes_out: int, dtype: str) -> Issued:
    size = bytes_in
    if op in OPS and min(bytes_in, bytes_out) >= 0:
        size = common_bytes(OPS.index(op), bytes_in, bytes_out)
    return Issued(op, "" if "barrier" in op else dtype, "", size, -1)


def _started(dumps: Sequence[Dump]) -> dict[str, dict[int, int]]:
    """Returns the number of the last started collective, by group and rank."""
    numbers: dict[str, dict[int, int]] = {}
    for dump in dumps:
        for entry in dump.entries:
            has_started = entry.state == "started" or entry.has_start
            if has_started and not entry.is_message:
                of_group = numbers.setdefault(entry.group, {})
                of_group[dump.rank] = max(of_group.get(dump.rank, entry.seq), entry.seq)
    return numbers


def _progress(
    dumps: Sequence[Dump], states: Sequence[DumpedRank], members: Mapping[str, tuple[int, ...]]
) -> tuple[GroupProgress, ...]:
    descriptions = {name: text for dump in dumps for name, text in dump.descriptions.items()}
    untold = {e.group for dump in dumps for e in dump.entries if e.state == UNTOLD}
    pending: defaultdict[str, list[tuple[int, PendingOperation]]] = defaultdict(list)
    for state in states:
        for one in state.pending.values():
            pending[one.group].append((state.rank, one))
    in_start = _started(dumps)
    by_rank = {state.rank: state for state in states}
    found = []
    for group, ranks in members.items():
        mine = pending.get(group, [])
        if not mine and group not in untold:
            continue
        collective = [(rank, one.seq) for rank, one in mine if one.peer < 0 and one.seq >= 0]
        here = [by_rank[rank] for rank in sorted({*ranks} & by_rank.keys())]
        scheduled = {s.rank: s.next_seq[group] - 1 for s in here if group in s.next_seq}
        oldest = dict(sorted(collective, reverse=True))  # keeps the smallest number of each rank
        begun = in_start.get(group, {})
        started = {state.rank: begun[state.rank] for state in here if state.rank in begun}
        completed = {}
        if group not in untold:
            completed = {rank: oldest.get(rank, last + 1) - 1 for rank, last in scheduled.items()}
        messages = len(mine) - len(collective)
        found.append(
            GroupProgress(
                group, descriptions.get(group, ""), ranks, scheduled, started, completed, messages
            )
        )
    return tuple(found)
