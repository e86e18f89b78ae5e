"""Finds ranks that issue different collectives under one sequence number of a group.

All ranks of a group must issue the same collectives in the same order. If a rank leaves out a
collective or issues another collective, gloo and NCCL may hang, fail or mix up data much later. The
cause lies at the first sequence number at which the ranks differ.

A recording of another profiler may lack calls. Its collectives are compared only if c10d recorded
their sequence numbers: numbers found by counting records would be wrong after a missing record.
Only recorded properties are compared.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.alike_ranks import alike_ranks
from commprof.analysis.collectives.calls_of_passes import (
    FORWARD,
    advice,
    advice_on_threads,
    by_another_thread,
    library_of,
    pass_of,
)
from commprof.analysis.collectives.issuing_lines import (
    LinesByNumber,
    OwnLine,
    innermost,
    is_shift,
    lines_of_parts,
    own_line,
    shifted_since,
    told_apart,
)
from commprof.analysis.collectives.kinds import call_path
from commprof.text import counted, listed, named_ranks
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.lookup import among
from commprof.trace.operations import REDUCING, UNEVEN, codes_of
from commprof.trace.ranks import firsts_of, joined
from commprof.trace.reader import Trace
from commprof.trace.schema import (
    FLAG_SPARSE,
    NO_SEQ,
    OPS,
    POINT_TO_POINT,
    REDUCE_OPS,
    ROOTED,
    UNKNOWN_REDUCE_OP,
    Kind,
    Records,
)

_REDUCING = codes_of(*REDUCING)
#: Operations whose output holds the inputs of all ranks. The output has the same size on all ranks,
#: even if the inputs have different sizes.
_GATHERING = codes_of("all_gather")
_UNEVEN = codes_of(*UNEVEN)
_BARRIERS = codes_of("barrier")
#: Largest number of kept collectives that some ranks have not yet issued. If there are more, the
#: oldest is dropped, because a rank that is so far behind hangs.
_MOST_OPEN = 4096
#: Number of a group's latest collectives that are kept to predict the next call.
_REMEMBERED = 512
#: Largest length of the sequence of latest calls that is searched for among earlier calls.
_COMPARED = 64
#: A call counts as usual if it followed the same sequence of calls at least this many times.
_TIMES = 2
#: Lines of code are read for at most this many collectives of a group, over all ranks.
_MOST_LINES = 1 << 16
#: Largest number of kept mismatches; further mismatches are only counted.
_MOST_KEPT = 8
Call = TypeVar("Call")


@dataclass(frozen=True)
class Issued:
    """Properties of one collective that must agree on all ranks of its group."""

    op: str
    #: Empty if the trace has no name for the type, or if nothing is sent.
    dtype: str
    #: Empty if nothing is reduced, or if the recording does not say how.
    reduce_op: str
    #: -1 if the size may differ between ranks, or was not recorded.
    size_bytes: int
    #: Root's rank in the group; -1 without a root, or if it was not recorded.
    root: int

    def __str__(self) -> str:
        words = [self.op]
        if self.reduce_op:
            words.append(f"({self.reduce_op})")
        if self.size_bytes >= 0:
            words.append(f"of {self.size_bytes} bytes")
        if self.dtype:
            words.append(f"as {self.dtype}")
        if self.root >= 0:
            words.append(f"from or to rank {self.root} of the group")
        return " ".join(words).replace(" (", "(", 1)


@dataclass(frozen=True)
class Mismatch:
    """Different collectives that ranks issued under one sequence number of a group."""

    #: c10d's name of the group.
    group: str
    seq: int
    #: Each collective with the global ranks that issued it; the most common collective is first.
    issued: tuple[tuple[Issued, tuple[int, ...]], ...]
    #: Each rank and its time of issue in ns, sorted by rank. Times are on a common clock if the
    #: mismatch comes from traces whose clocks can be compared, else on the rank's own clock.
    issue_ns: tuple[tuple[int, int], ...]
    #: The collective that came next after the same calls in earlier steps; None if unknown.
    usual: Issued | None = None
    #: File and line at which each rank issued the collective. Ranks whose line is unknown are left
    #: out.
    lines: tuple[tuple[int, str], ...] = ()
    #: Sequence number from which on the ranks issued calls at different lines, and each rank's line
    #: at this number. None if unknown. See ``issuing_lines.shifted_since``.
    shifted: tuple[int, tuple[tuple[int, str], ...]] | None = None
    #: True if the lines show that a call was left out or added, see ``issuing_lines.is_shift``.
    is_shift: bool = False
    #: The line at which only some ranks issued earlier collectives; None if there is no such line,
    #: or if there are several.
    own_line: OwnLine | None = None
    #: Each rank and the pass that issued its collective, see ``calls_of_passes.pass_of``; empty if
    #: this was not looked up.
    passes: tuple[tuple[int, str], ...] = ()
    #: Ranks on which a thread other than the training thread issued the collective; empty if this
    #: was not looked up.
    by_threads: tuple[int, ...] = ()
    #: The library that issued the call in a forward pass, see ``calls_of_passes.library_of``. Empty
    #: if it is unknown, or differs between ranks.
    library: str = ""

    @property
    def odd_ranks(self) -> tuple[int, ...]:
        """The ranks of ``told_ranks``; all ranks if ``told_ranks`` is empty."""
        everyone = tuple(sorted(rank for _, ranks in self.issued for rank in ranks))
        return self.told_ranks or everyone

    @property
    def told_ranks(self) -> tuple[int, ...]:
        """The ranks that differ from the other ranks; empty if they are unknown.

        If most ranks issued the same collective, the remaining ranks differ. Without such a
        majority, the ranks of ``own_line`` differ, or else the ranks that did not issue the usual
        collective.
        """
        first, *others = (ranks for _, ranks in self.issued)
        odd = tuple(sorted(rank for ranks in others for rank in ranks))
        if len(first) > len(odd):
            return odd
        if self.own_line is not None:
            return self.own_line.ranks
        if self.usual is None or self.usual not in [issued for issued, _ in self.issued]:
            return ()
        return tuple(
            sorted(r for issued, ranks in self.issued if issued != self.usual for r in ranks)
        )

    @property
    def difference(self) -> str:
        """Says which collectives differ: "rank 1 issued a barrier where rank 0 issued ..."."""
        told = self.told_ranks
        odd = [part for part in self.issued if {*part[1]} <= {*told}] or self.issued[1:]
        rest = [part for part in self.issued if part not in odd]
        by_majority = len(self.issued[0][1]) * 2 > len(self.issue_ns)
        if self.own_line is not None and not by_majority:
            own = self.own_line
            who = (
                f"no other rank issued calls at {own.line}, where {named_ranks(own.ranks)} issued "
                f"{counted(own.calls, 'call')} before"
            )
        else:
            who = who_differs(told, by_majority)
        return f"{self._said(odd)} where {self._said(rest)}; {who}{self._shift}"

    @property
    def _shift(self) -> str:
        if self.shifted is None:
            return ""
        seq, lines = self.shifted
        said = [f"{named_ranks(ranks)} issued it at {line}" for line, ranks in self._by_line(lines)]
        return (
            f"; before that, collective {seq} agrees only in operation and size: "
            f"{', '.join(said)}, so a call {'was' if self.is_shift else 'may have been'} left out "
            "or added there"
        )

    def _said(self, parts: Sequence[tuple[Issued, tuple[int, ...]]]) -> str:
        said = []
        for issued, ranks in parts:
            article = "an" if issued.op[:1] in "aeiou" else "a"
            said.append(f"{named_ranks(ranks)} issued {article} {self.of_rank(ranks[0])}")
        return listed(said)

    def of_rank(self, rank: int) -> str:
        """Returns a rank's collective and its line as text: "barrier (train.py:7)"."""
        issued, ranks = next(part for part in self.issued if rank in part[1])
        places = {line for at, line in self.lines if at in ranks}
        return f"{issued}" + (f" ({min(places)})" if len(places) == 1 else "")

    @property
    def sentence(self) -> str:
        """Sentence that says what differs, and which ranks differ if they are known."""
        where = f"Collective {self.seq} of group {self.group!r}"
        return f"{where} is not the same on all ranks: {self.difference}"

    @property
    def remedy(self) -> str:
        """Advice on what to change in the script, with the lines of the ranks if they are known."""
        told = self.told_ranks
        others = [rank for rank, _ in self.issue_ns if rank not in self.by_threads]
        if self.by_threads and others:
            return advice_on_threads(self.by_threads, others)
        if advised := advice(dict(self.passes), dict(self.lines), self.library, told):
            return advised
        if self.shifted is not None and self.is_shift:
            seq, shifted = self.shifted
            places = [f"{named_ranks(ranks)} at {line}" for line, ranks in self._by_line(shifted)]
            return (
                f"Some ranks left out or added a call at collective {seq}. Let all ranks make the "
                f"same call. The ranks issued this collective at different lines: {listed(places)}."
            )
        places = [f"{named_ranks(ranks)} at {line}" for line, ranks in self._by_line(self.lines)]
        if len(places) == 1 and len(self.lines) == len(self.issue_ns):
            return (
                f"Make all ranks issue the same calls in the same order: at {self.lines[0][1]} "
                "they issue different calls."
            )
        if len(places) < 2:
            return "Make all ranks of the group issue the same calls in the same order:"
        return f"Make all ranks issue the same calls in the same order: {listed(places)}."

    @staticmethod
    def _by_line(lines: Sequence[tuple[int, str]]) -> list[tuple[str, list[int]]]:
        """Returns each line with its ranks, the line of the fewest ranks first."""
        by_line: dict[str, list[int]] = {}
        for rank, line in lines:
            by_line.setdefault(line, []).append(rank)
        return sorted(by_line.items(), key=lambda item: (len(item[1]), -item[1][0]))


def who_differs(ranks: Sequence[int], by_majority: bool) -> str:
    """Names the ranks that differ, and says what they differ from.

    ``by_majority``: True if the ranks differ from the majority; False if they differ from their own
    earlier steps.
    """
    if not ranks:
        return "which rank is wrong cannot be told"
    several = len(ranks) > 1
    other = "the majority" if by_majority else f"{'their' if several else 'its'} own earlier steps"
    return f"{named_ranks(ranks)} differ{'' if several else 's'} from {other}"


def common_bytes(op: int, bytes_in: int, bytes_out: int) -> int:
    """Returns the bytes that must be equal on all ranks of a collective; -1 if they may differ."""
    if op in _UNEVEN or op in _BARRIERS:
        return -1
    return bytes_out if op in _GATHERING else bytes_in or bytes_out


def issued_of(row: Mapping[str, int], dtypes: Sequence[str]) -> Issued:
    """Reads the properties that must be equal on all ranks from an issue record.

    ``dtypes``: names of the data types, by code.
    """
    op = row["op"]
    size = common_bytes(op, row["bytes_in"], row["bytes_out"])
    named = op not in _BARRIERS and row["dtype"] < len(dtypes)
    reduce_op = row["reduce_op"]
    names = {**dict(enumerate(REDUCE_OPS)), UNKNOWN_REDUCE_OP: ""}
    return Issued(
        op=OPS[op] if op < len(OPS) else f"operation {op}",
        dtype=dtypes[row["dtype"]] if named else "",
        reduce_op=names.get(reduce_op, str(reduce_op)) if op in _REDUCING else "",
        size_bytes=-1 if row["flags"] & FLAG_SPARSE else size,
        root=row["aux"] if op in ROOTED else -1,
    )


def usual_after(earlier: Sequence[Call]) -> Call | None:
    """Predicts the next call from earlier calls, because steps repeat.

    Searches for the longest sequence of latest calls that was issued at least ``_TIMES`` times
    before. Returns the call that always followed this sequence; None if there is no such sequence
    or call.

    ``earlier``: calls in order.
    """
    count = len(earlier)
    for length in range(min(_COMPARED, count - 1), 0, -1):
        latest = earlier[count - length :]
        followed = [
            earlier[begin + length]
            for begin in range(count - length)
            if earlier[begin + length - 1] == latest[-1]
            and earlier[begin : begin + length] == latest
        ]
        if len(followed) >= _TIMES:
            return followed[0] if all(one == followed[0] for one in followed) else None
    return None


class MismatchFinder:
    """Finds mismatches in a stream of collectives, in which each rank's collectives are in order.

    A mismatch is reported once all ranks have issued the collective. If some ranks are blocked
    before the collective, the second ``poll`` after the mismatch reports the mismatch without these
    ranks.
    """

    def __init__(self) -> None:
        #: The first mismatch of each group, for at most ``_MOST_KEPT`` groups.
        self.found: list[Mismatch] = []
        #: For each mismatch in ``found``: each rank's collective and its time of issue. Ranks that
        #: issue the collective after the report are added.
        self._of_found: list[dict[int, tuple[Issued, int]]] = []
        self.count = 0
        self._open: dict[tuple[str, int], dict[int, tuple[Issued, int]]] = {}
        self._complete: list[tuple[tuple[str, int], dict[int, tuple[Issued, int]]]] = []
        #: The latest collectives of each group that were the same on all ranks.
        self._earlier: dict[str, deque[Issued]] = {}
        #: For each group: sequence number of the latest mismatch, and each rank's collective and
        #: its time of issue.
        self._latest: dict[str, tuple[int, dict[int, tuple[Issued, int]]]] = {}
        #: For each group: sequence number of the mismatch that was reported before the latest one.
        self._previous: dict[str, int] = {}
        #: For each mismatch in ``_open``: number of polls so far; -1 after its report.
        self._differing: dict[tuple[str, int], int] = {}

    def add(
        self, rank: int, group: str, size: int, seq: int, issued: Issued, issue_ns: int
    ) -> None:
        """Adds the next collective of one rank.

        Args:
            rank: global rank.
            group: name of the group, equal on its ranks.
            size: number of ranks in the group.
            seq: sequence number in the group.
            issued: the collective.
            issue_ns: time of issue on the rank's own clock.
        """
        key = group, seq
        members = self._open.setdefault(key, {})
        members.pop(rank, None)
        first, _ = next(iter(members.values()), (issued, 0))
        if issued != first:
            self._differing.setdefault(key, 0)
        members[rank] = issued, issue_ns
        if len(members) >= size:
            del self._open[key]
            looks = self._differing.pop(key, None)
            if looks is None:
                self._earlier.setdefault(group, deque(maxlen=_REMEMBERED)).append(issued)
            elif looks >= 0:
                self._complete.append((key, members))
        if len(self._open) > _MOST_OPEN:
            oldest = next(iter(self._open))
            del self._open[oldest]
            self._differing.pop(oldest, None)

    def poll(self, last: bool = False) -> list[Mismatch]:
        """Returns the first mismatch of each group, if it was found since the last poll.

        Args:
            last: True if no rank will issue further collectives.
        """
        ready, self._complete = self._complete, []
        for key, looks in self._differing.items():
            late = looks > 0 or (last and looks == 0)
            if late:
                ready.append((key, self._open[key]))
            self._differing[key] = -1 if late or looks < 0 else looks + 1
        reported = []
        for (group, seq), members in ready:
            self.count += 1
            if group in self._latest or len(self._latest) < _MOST_KEPT:
                if group in self._latest:
                    self._previous[group] = self._latest[group][0]
                self._latest[group] = seq, members
            if group not in {one.group for one in self.found} and len(self.found) < _MOST_KEPT:
                self.found.append(self._made(group, seq, members))
                self._of_found.append(members)
                reported.append(self.found[-1])
        return reported

    def known(self) -> list[Mismatch]:
        """Returns the latest mismatches, including mismatches that are not yet reported.

        These are the latest reported mismatch of each group, and up to ``_MOST_KEPT`` mismatches
        that are not yet reported.
        """
        unfinished = [(key, self._open[key]) for key in self._differing if key in self._open]
        latest = [((group, seq), members) for group, (seq, members) in self._latest.items()]
        newest = [*self._complete, *unfinished][-_MOST_KEPT:]
        return [self._made(*key, members) for key, members in (*latest, *newest)]

    def first(self) -> list[Mismatch]:
        """Returns ``found``, with all ranks that have issued the collectives by now."""
        return [
            mismatch_of(mismatch.group, mismatch.seq, members, mismatch.usual)
            for mismatch, members in zip(self.found, self._of_found, strict=True)
        ]

    def agree_since(self, group: str, seq: int) -> int:
        """Returns the sequence number from which on a group's collectives agree up to ``seq``.

        This is the number after the group's last known mismatch before ``seq``; 0 if there is none.
        """
        keys = [*self._differing, *(key for key, _ in self._complete)]
        numbers = {number for name, number in keys if name == group}
        if group in self._latest:
            numbers.add(self._latest[group][0])
        numbers.add(self._previous.get(group, -1))
        numbers |= {mismatch.seq for mismatch in self.found if mismatch.group == group}
        return max((number + 1 for number in numbers if number < seq), default=0)

    def _made(self, group: str, seq: int, members: Mapping[int, tuple[Issued, int]]) -> Mismatch:
        return mismatch_of(group, seq, members, usual_after([*self._earlier.get(group, ())]))


def mismatches_by_group(
    traces: Sequence[Trace], tables: Sequence[Collectives]
) -> tuple[tuple[Mismatch, ...], dict[tuple[str, int], Ints]]:
    """Returns each group's first mismatch, and the sequence numbers of each group's mismatches.

    First mismatches are returned for at most ``_MOST_KEPT`` groups. ``traces`` and ``tables`` have
    one entry per rank.
    """
    if not traces:
        return (), {}
    names: dict[tuple[str, int], int] = {}
    parts = list(_keys_in_rows(traces, tables, names))
    lengths = np.concatenate([part.lengths for part in parts])
    key, row = (np.concatenate([getattr(part, name) for part in parts]) for name in ("key", "row"))
    value, known = (
        np.concatenate([getattr(part, name) for part in parts], axis=1)
        for name in ("value", "known")
    )
    member = np.repeat(np.arange(len(traces)), lengths)
    order = np.argsort(key, kind="stable")
    key, row, member = key[order], row[order], member[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    if len(starts) == 0:
        return (), {}
    differs = _differ(value[:, order], known[:, order], starts)
    ends = np.append(starts[1:], len(key))
    if differs.any():
        parts = [
            _keys([trace], [table], names) for trace, table in zip(traces, tables, strict=True)
        ]
    found: dict[int, Mismatch] = {}
    for begin, end in zip(starts[differs].tolist(), ends[differs].tolist(), strict=True):
        number, seq = divmod(int(key[begin]), 1 << 32)
        if number not in found and len(found) < _MOST_KEPT:
            members = {
                traces[who].rank: _issued_at(traces[who], tables[who], at)
                for who, at in zip(member[begin:end].tolist(), row[begin:end].tolist(), strict=True)
            }
            who = int(member[begin])
            usual = usual_after(_earlier(traces[who], tables[who], parts[who], number, seq))
            group = list(names)[number][0]
            paths = _paths(traces, tables, parts, number, seq)
            made = with_lines(mismatch_of(group, seq, members, usual), paths)
            calls = dict(zip(member[begin:end].tolist(), row[begin:end].tolist(), strict=True))
            passes = {i: pass_of(traces[i], tables[i], call) for i, call in calls.items()}
            libraries = {
                library_of(traces[i], tables[i], calls[i])
                for i, name in passes.items()
                if name == FORWARD
            }
            found[number] = replace(
                made,
                by_threads=tuple(
                    sorted(
                        traces[i].rank
                        for i, call in calls.items()
                        if by_another_thread(traces[i], tables[i], call)
                    )
                ),
                passes=tuple(sorted((traces[i].rank, name) for i, name in passes.items())),
                library=libraries.pop() if len(libraries) == 1 else "",
            )
    of_group, seqs = np.divmod(key[starts[differs]], 1 << 32)
    keys = list(names)
    differing = {keys[place]: seqs[of_group == place] for place in np.unique(of_group).tolist()}
    return tuple(found.values()), differing


def _paths(
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    parts: Sequence[_Keys],
    group: int,
    seq: int,
) -> dict[int, dict[int, str]]:
    """Returns the texts of ``call_path`` for a group's collectives, by sequence number and rank.

    Only collectives up to ``seq`` are read, and of many collectives only the latest. Calls without
    a recorded stack are left out.
    """
    before = max(_COMPARED, _MOST_LINES // len(traces))
    paths: dict[int, dict[int, str]] = {}
    for trace, table, keys in zip(traces, tables, parts, strict=True):
        if not trace.stacks:
            continue
        number = keys.key & 0xFFFFFFFF
        wanted = (keys.key >> 32 == group) & (number <= seq) & (number >= seq - before)
        stacks = columns.stacks(trace, table.op_id[keys.row[wanted]])
        texts = {
            stack: call_path(trace.stacks.get(stack, ())) for stack in np.unique(stacks).tolist()
        }
        for place, stack in zip(number[wanted].tolist(), stacks.tolist(), strict=True):
            if texts[stack]:
                paths.setdefault(place, {})[trace.rank] = texts[stack]
    return paths


def _earlier(trace: Trace, table: Collectives, keys: _Keys, group: int, seq: int) -> list[Issued]:
    """Returns a rank's latest collectives of a group before a sequence number.

    The list is empty for a recording by another profiler, which may lack collectives.
    """
    if trace.recorded is not None:
        return []
    rows = keys.row[(keys.key >> 32 == group) & (keys.key & 0xFFFFFFFF < seq)]
    in_order = rows[np.argsort(table.seq[rows], kind="stable")][-_REMEMBERED:]
    return [_issued_at(trace, table, row)[0] for row in in_order.tolist()]


class _Keys(NamedTuple):
    """Collectives of some ranks, as columns for the comparison with other ranks."""

    #: Index of the group * 2^32 + sequence number.
    key: Ints
    #: ``[property, collective]``: properties that must agree.
    value: npt.NDArray[np.uint64]
    #: ``[property, collective]``: False where the property is not known.
    known: npt.NDArray[np.bool_]
    row: Ints
    #: Number of rows of each rank.
    lengths: Ints


def _differ(
    value: npt.NDArray[np.uint64], known: npt.NDArray[np.bool_], starts: Ints
) -> npt.NDArray[np.bool_]:
    """True for each collective with a property whose known values differ between ranks.

    ``starts``: first row of each collective; the rows of its other ranks follow.
    """
    most = np.iinfo(np.uint64).max
    largest = np.maximum.reduceat(np.where(known, value, 0), starts, axis=1)
    least = np.minimum.reduceat(np.where(known, value, most), starts, axis=1)
    several = np.logical_or.reduceat(known, starts, axis=1)
    differs: npt.NDArray[np.bool_] = ((largest != least) & several).any(axis=0)
    return differs


def _keys_in_rows(
    traces: Sequence[Trace], tables: Sequence[Collectives], names: dict[tuple[str, int], int]
) -> Iterator[_Keys]:
    for rows in alike_ranks(traces):
        if traces[rows.start].recorded is None:
            yield _keys(traces[rows], tables[rows], names)
        else:
            for trace, table in zip(traces[rows], tables[rows], strict=True):
                yield _keys([trace], [table], names)


def _keys(
    traces: Sequence[Trace], tables: Sequence[Collectives], names: dict[tuple[str, int], int]
) -> _Keys:
    """Returns the collectives of ranks whose traces describe the process groups alike.

    A recording that lacks fields (``Trace.recorded``) must be the only one in ``traces``. ``names``
    holds the indices of known groups; new groups are added. A group's key has its name and a count
    of earlier groups with this name, because groups can reuse a name after
    ``destroy_process_group``.
    """
    number, op, seq = (joined(tables, name) for name in ("group", "op", "seq"))
    first_row = firsts_of(tables)
    group = np.full(len(op), -1, dtype=np.int64)
    turns: Counter[str] = Counter()
    for described in sorted(traces[0].groups.values(), key=lambda each: each.id):
        key = described.name, turns[described.name]
        turns[described.name] += 1
        group[number == described.id] = names.setdefault(key, len(names))
    numbered = (seq != NO_SEQ) & ~among(op, *POINT_TO_POINT)
    recorded = traces[0].recorded
    if recorded is not None:
        numbered &= (recorded.number & recorded.group)[tables[0].op_id - 1]
    chosen = (group >= 0) & numbered
    rows = np.flatnonzero(chosen)
    every = slice(None) if len(rows) == len(chosen) else rows  # a slice needs no copy

    def column(name: str) -> npt.NDArray[Any]:
        return joined(tables, name)[every]

    op, bytes_in, bytes_out = op[every], column("bytes_in"), column("bytes_out")
    size = np.where(bytes_in > 0, bytes_in, bytes_out)
    size = np.where(among(op, *_GATHERING), bytes_out, size)
    free = among(op, *_UNEVEN, *_BARRIERS) | column("sparse")
    size = np.where(free, -1, size)
    values = [
        op,
        np.where(among(op, *_BARRIERS), -1, column("dtype")),
        np.where(among(op, *_REDUCING), column("reduce_op"), -1),
        size,
        np.where(among(op, *ROOTED), column("peer"), -1),
    ]
    keys = (group[every] << 32) + seq[every]
    lengths = np.diff(np.searchsorted(rows, first_row))
    rows = rows - np.repeat(first_row[:-1], lengths)
    if recorded is not None:
        at = tables[0].op_id[rows] - 1
        named, sized, rooted = recorded.operation[at], recorded.size[at], recorded.root[at]
        known = np.stack([named, named & sized, named, named & sized, named & rooted])
        return _Keys(keys, np.stack(values).astype(np.uint64), known, rows, lengths)
    hashed = np.zeros(len(rows), dtype=np.uint64)
    for of_calls in values:
        # FNV-1a's prime; numpy's integers wrap around.
        hashed = (hashed ^ of_calls.astype(np.uint64)) * np.uint64(0x100000001B3)
    ones = np.ones((1, len(rows)), dtype=np.bool_)
    return _Keys(keys, hashed[np.newaxis], ones, rows, lengths)


def _issued_at(trace: Trace, table: Collectives, row: int) -> tuple[Issued, int]:
    fields = {
        "op": table.op,
        "dtype": table.dtype,
        "reduce_op": table.reduce_op,
        "bytes_in": table.bytes_in,
        "bytes_out": table.bytes_out,
        "aux": table.peer,
    }
    values = {name: int(column[row]) for name, column in fields.items()}
    values["flags"] = FLAG_SPARSE if table.sparse[row] else 0
    issued = issued_of(values, trace.metadata["dtypes"])
    if trace.recorded is not None:
        at = int(table.op_id[row]) - 1
        if not trace.recorded.size[at]:
            issued = replace(issued, dtype="", size_bytes=-1)
        if not trace.recorded.root[at]:
            issued = replace(issued, root=-1)
    return issued, int(table.issue_ns[row])


def issue_rows(records: Records) -> Iterator[dict[str, int]]:
    """Yields each collective's issue record as plain numbers, if it has a ``seq``."""
    issues = records[records["kind"] == Kind.ISSUE]
    names = issues.dtype.names or ()
    for values in issues.tolist():
        row = dict(zip(names, values, strict=True))
        if row["op"] not in POINT_TO_POINT and row["seq"] != NO_SEQ:
            yield row


def mismatch_of(
    group: str,
    seq: int,
    members: Mapping[int, tuple[Issued, int]],
    usual: Issued | None = None,
) -> Mismatch:
    """Makes a ``Mismatch`` from the collectives that ranks issued under one sequence number.

    Args:
        group: name of the group.
        seq: the sequence number.
        members: each rank's collective and its time of issue in ns.
        usual: as in ``Mismatch``.
    """
    by_value: dict[Issued, list[int]] = {}
    for rank, (issued, _) in sorted(members.items()):
        by_value.setdefault(issued, []).append(rank)
    ordered = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return Mismatch(
        group,
        seq,
        tuple((issued, tuple(ranks)) for issued, ranks in ordered),
        tuple((rank, issue_ns) for rank, (_, issue_ns) in sorted(members.items())),
        usual,
    )


def with_lines(mismatch: Mismatch, paths: LinesByNumber, agree_since: int = 0) -> Mismatch:
    """Returns a copy of a mismatch with the fields that follow from the lines of the script.

    These are ``lines``, ``shifted``, ``is_shift`` and ``own_line``.

    Args:
        mismatch: the mismatch.
        paths: texts of ``call_path`` for the group's collectives up to the mismatch.
        agree_since: sequence number from which on the ranks' collectives agree up to the mismatch.
    """
    lines = {number: innermost(by_rank) for number, by_rank in paths.items()}
    agreeing = {number: by_rank for number, by_rank in paths.items() if number >= agree_since}
    shifted = shifted_since(agreeing, mismatch.seq)
    parts = [ranks for _, ranks in mismatch.issued]
    return replace(
        mismatch,
        lines=lines_of_parts(paths.get(mismatch.seq, {}), parts),
        shifted=None if shifted is None else (shifted[0], told_apart(shifted[1])),
        is_shift=shifted is not None and is_shift(agreeing, shifted[0]),
        own_line=own_line(lines, lines.get(mismatch.seq, {}), mismatch.seq),
    )
