"""Reads dumps of c10d's Flight Recorder: operations that a rank scheduled, started or completed.

Versions 2.x are read, as pickle or JSON. If a dump holds only active entries, ``pg_status`` gives
the sequence number of the last completed operation. NCCL numbers point-to-point messages on each
rank separately. A send and its receive are therefore matched by order, not by number.

An entry may be retired but have no completion. The meaning depends on the recorder (torch's
``FlightRecorder.hpp`` and ``FlightRecorderHook.hpp``):

- gloo: the operation has completed.
- A recorder that learns of completions: the operation has timed out. Such recorders are those of
  NCCL and XCCL. From torch 2.15 on, the hook of a backend that reports completions is one too.
- The hook of another backend: the operation was issued, and may have completed.

A recorder learns of completions if the dump names the version of a communication library, if the
dump's version is below 2.10, or if any dump has a completed entry of the same group and backend.
Only NCCL's recorder names such a library. Hooks did not write dumps before version 2.10.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from commprof.errors import TraceError
from commprof.invocation import quoted
from commprof.recordings.containers import few
from commprof.recordings.element_types import c10d_type, element_bytes
from commprof.recordings.flight_recorder_alike import INTEGERS, alike_entries
from commprof.recordings.flight_recorder_files import dump_files
from commprof.recordings.objects import without_collections
from commprof.text import CALLED_AT, named_ranks, printable

#: Sizes of tensors in bytes are limited to this value, because a dump may be damaged.
_LARGEST_SIZE = 1 << 63
_MESSAGE = re.compile(r"(send|recv) (\d+|\?)(?:->|<-)(\d+|\?)")
_OF_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d[\d.]*/|^<|/torch/distributed/|/commprof/(?:capture|compressors|trials)/|\.(?:cpp|h)$"
)
_MOST_FRAMES = 200
_MOST_LINES = 16
#: Functions of torch.distributed for which gloo records an all-reduce.
_RUN_AS_ALL_REDUCE = {
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
#: State of an operation that may be pending or completed.
UNTOLD = "untold"
#: Temporary state of a retired entry without a completion.
_RETIRED = "retired"
#: Oldest version of the dumps that hooks (``FlightRecorderHook.hpp``) write.
_WITH_HOOKS = (2, 10)
_STATES = ("scheduled", "started", "completed")
_OPS = {
    "allreduce": "all_reduce",
    "all_reduce_barrier": "barrier",  # NCCL's barrier since torch 2.6
    "all_reduce_sparse": "all_reduce",
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_to_allv": "all_to_all_single",
}


class Entry(NamedTuple):
    """One operation in a rank's Flight Recorder dump."""

    group: str
    #: "nccl", "gloo", ...
    backend: str
    #: c10d's public name; "send", "recv" or "recv_any_source" for a point-to-point message;
    #: "collective" for an operation known only from ``pg_status``.
    op: str
    is_message: bool
    #: Sequence number in the group. Collectives count from 0. Each rank numbers its messages
    #: separately.
    seq: int
    #: The other rank of a message, as rank in the group. -1 for a collective, and for a receive
    #: from any rank.
    peer: int
    #: "scheduled", "started", "completed", or ``UNTOLD``.
    state: str
    #: Size of the input; -1 if not known.
    bytes_in: int
    #: Size of the output; -1 if not known.
    bytes_out: int
    dtype: str
    created_ns: int
    #: True if the dump has a time for the start of the operation.
    has_start: bool = False
    #: Lines of the script that issued the operation, innermost first: "a.py:7 < train.py:20"; empty
    #: if not known.
    path: str = ""

    @property
    def line(self) -> str:
        """File and line that issued the operation: "train.py:7"; empty if not known."""
        return self.path.split(CALLED_AT, 1)[0]


@dataclass(frozen=True)
class Dump:
    """One rank's Flight Recorder dump."""

    rank: int
    version: str
    #: Global ranks by group name. Groups whose ranks are not known are left out.
    members: Mapping[str, tuple[int, ...]]
    descriptions: Mapping[str, str]
    entries: tuple[Entry, ...]
    #: Sequence number of the last operation that the rank issued, by group name.
    last_enqueued: Mapping[str, int]
    #: Sequence number of the last operation known to have completed, by group name.
    last_completed: Mapping[str, int]
    #: True if an operation is pending in a group that cannot be identified.
    unknown_pending: bool = False
    #: True if the recorder of a communication library such as NCCL wrote the dump. False if the
    #: hook of another backend may have written it.
    of_library: bool = True
    #: Time of the first entry, if the rank's buffer has dropped earlier entries; else 0.
    since_ns: int = 0
    #: True if the dump holds all of the rank's records.
    whole: bool = False
    #: Indices of process groups without names. Each rank counts its groups separately.
    unnamed: frozenset[int] = frozenset()


def read_dumps(path: Path) -> tuple[list[Dump], list[str]]:
    """Reads the dumps of a folder or archive, in order of rank.

    Also returns sentences about files that cannot be read or are left out.

    Raises:
        TraceError: no dump can be read, several folders hold dumps of one rank, or the process
            groups cannot be identified.
    """
    with without_collections():
        return _read(path)


def _read(path: Path) -> tuple[list[Dump], list[str]]:
    found: dict[int, Dump] = {}
    dumped, problems = dump_files(path)
    entries_of = _Entries()
    for each in dumped:
        file, rank = each.file, each.rank
        try:
            dump = _dump(rank, each.value(), entries_of)
        except (OSError, ValueError) as error:
            what = printable(str(error).splitlines()[0] if str(error) else "damaged")
            problems.append(f"{quoted(file)} is not a readable Flight Recorder dump: {what}")
            continue
        if rank in found:
            problems.append(f"{quoted(file)} is left out: rank {rank} has another dump")
        else:
            found[rank] = dump
    if not found:
        raise TraceError(
            problems[0] if problems else f"{quoted(path)} holds no Flight Recorder dump"
        )
    dumps = _with_distinct_groups([found[rank] for rank in sorted(found)])
    unnamed = frozenset[int]().union(*(dump.unnamed for dump in dumps))
    if len(unnamed) > 1 and len(dumps) > 1:
        raise TraceError(
            f"the dumps in {quoted(path)} have indices instead of names for {len(unnamed)} process "
            "groups, and each rank counts its groups on its own, so it is not known which groups "
            "are the same. A newer torch writes names; the dump of one rank alone can be read"
        )
    if not any(entry.state == "completed" for dump in dumps for entry in dump.entries):
        # Only active entries were dumped, so missing entries do not mean that the buffer was full.
        dumps = [replace(dump, since_ns=0) for dump in dumps]
    dumps = _from_zero(_with_retired(dumps))
    if not any(dump.entries for dump in dumps):
        dumps = [_with_pending_by_status(dump) for dump in dumps]
    return dumps, few(problems)


def _with_retired(dumps: Sequence[Dump]) -> list[Dump]:
    """Replaces the temporary state of retired entries by the true state."""
    told = {
        (entry.group, entry.backend)
        for dump in dumps
        for entry in dump.entries
        if entry.state == "completed"
    }

    def state(entry: Entry, dump: Dump) -> str:
        if entry.state != _RETIRED:
            return entry.state
        if dump.of_library or (entry.group, entry.backend) in told:
            return "started" if entry.has_start else "scheduled"
        return UNTOLD

    return [
        replace(dump, entries=tuple(e._replace(state=state(e, dump)) for e in dump.entries))
        if any(e.state == _RETIRED for e in dump.entries)
        else dump
        for dump in dumps
    ]


def _from_zero(dumps: Sequence[Dump]) -> list[Dump]:
    """Numbers the collectives from 0, as in traces. c10d counts from 1."""
    if any(entry.seq == 0 and not entry.is_message for dump in dumps for entry in dump.entries):
        return list(dumps)
    return [
        replace(
            dump,
            entries=tuple(map(_entry_before, dump.entries)),
            last_enqueued={name: _before(seq, dump) for name, seq in dump.last_enqueued.items()},
            last_completed={name: _before(seq, dump) for name, seq in dump.last_completed.items()},
        )
        for dump in dumps
    ]


def _entry_before(entry: Entry) -> Entry:
    if entry.is_message:
        return entry
    return Entry._make((*entry[:4], entry.seq - 1, *entry[5:]))


def _before(seq: int, dump: Dump) -> int:
    """Converts a number of the dump's ``pg_status`` to counting from 0; -1 without an operation.

    Hooks already count from 0. A dump that no library wrote is from a hook if the dump lists the
    groups' ranks, and otherwise from gloo.
    """
    return max(-1, seq - (1 if dump.of_library or not dump.members else 0))


def _with_distinct_groups(dumps: Sequence[Dump]) -> list[Dump]:
    """Renames groups of the same name with different ranks. split_group makes such groups."""
    ranks_of: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps:
        for name, ranks in dump.members.items():
            ranks_of[name].add(ranks)

    return [
        _renamed(
            dump,
            {
                name: f"{name} ({named_ranks(ranks, most=None)})"
                for name, ranks in dump.members.items()
                if len(ranks_of[name]) > 1
            },
        )
        for dump in dumps
    ]


def _renamed(dump: Dump, names: Mapping[str, str]) -> Dump:
    if not names:
        return dump
    return replace(
        dump,
        entries=tuple(e._replace(group=names.get(e.group, e.group)) for e in dump.entries),
        members={names.get(name, name): ranks for name, ranks in dump.members.items()},
        descriptions={names.get(name, name): text for name, text in dump.descriptions.items()},
        last_enqueued={names.get(name, name): seq for name, seq in dump.last_enqueued.items()},
        last_completed={names.get(name, name): seq for name, seq in dump.last_completed.items()},
    )


def _with_pending_by_status(dump: Dump) -> Dump:
    """Adds entries for each group's first and last pending operation, as ``pg_status`` gives them.

    Raises:
        TraceError: an operation is pending in a group that cannot be identified.
    """
    if dump.unknown_pending:
        raise TraceError(
            f"the dump of rank {dump.rank} has no entries, and its pg_status does not identify the "
            "groups; make dumps with includeCollectives=True"
        )
    pending = [
        Entry(group, "", "collective", False, seq, -1, "scheduled", -1, -1, "", 0)
        for group, last in dump.last_enqueued.items()
        for seq in {dump.last_completed.get(group, last) + 1, last}
        if dump.last_completed.get(group, last) < seq <= last
    ]
    return replace(dump, entries=tuple(pending))


def members_of(dumps: Sequence[Dump]) -> dict[str, tuple[int, ...]]:
    """Returns the global ranks of each group, by group name.

    If no dump lists a group's ranks, the ranks whose dumps have entries of the group are returned.
    For c10d's group of all ranks, all ranks up to the last rank with a dump are then returned.
    """
    members: dict[str, tuple[int, ...]] = {}
    for dump in dumps:
        members.update(dump.members)
    users: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        for entry in dump.entries:
            users[entry.group].add(dump.rank)
    if "0" in users:  # c10d's name of the group of all ranks
        users["0"].update(range(max(dump.rank for dump in dumps) + 1))
    return {**{group: tuple(sorted(ranks)) for group, ranks in users.items()}, **members}


def _dump(rank: int, value: Any, entries_of: _Entries) -> Dump:
    """Makes a dump from a file's decoded value.

    Raises:
        ValueError: the value does not have the structure of a dump.
    """
    if not isinstance(value, dict) or not isinstance(value.get("entries", []), list):
        raise ValueError("it has no list of entries")
    version = str(value.get("version", ""))[:20]
    if version and not version.startswith("2."):
        raise ValueError(f"version {version!r} is not supported (allowed: 2.x)")
    config, status = (_dictionary(value, key) for key in ("pg_config", "pg_status"))
    found, descriptions, records = entries_of.of(value.get("entries", []))
    first = min(records, default=0)
    entries = _launches(found)
    ids = {about.pg_id: about.before[0] for about in descriptions}
    of_library = _is_of_library(value, version)
    if any(entry.backend == "gloo" for entry in entries) or (entries and not of_library):
        # The status is not usable: gloo also counts operations without entries, and a hook also
        # counts messages.
        status = {}
    elif not of_library:
        status = {key: one for key, one in status.items() if _has_completed(one)}
    named = {name: one for name, one in config.items() if name and isinstance(one, dict)}
    enqueued = _in_status("last_enqueued_collective", status, ids, list(named))
    return Dump(
        rank=rank,
        version=version,
        members={name: ranks for name, one in named.items() if (ranks := _ranks(one))},
        descriptions={name: _description(one) for name, one in named.items()},
        entries=tuple(entries),
        last_enqueued=enqueued,
        last_completed=_in_status("last_completed_collective", status, ids, list(named)),
        unknown_pending=len(enqueued) < sum(_is_behind(one) for one in status.values()),
        of_library=of_library,
        # If the first record's id is above 0, earlier records were dropped.
        since_ns=min((entry.created_ns for entry in entries), default=0) if first > 0 else 0,
        whole=bool(records) and first == 0 and max(records) == len(records) - 1,
        unnamed=frozenset(about.pg_id for about in descriptions if not about.names_group),
    )


def _is_of_library(value: Mapping[str, Any], version: str) -> bool:
    """True if a dump comes from the recorder of a communication library, not from a hook."""
    numbers = tuple(int(number) for number in re.findall(r"\d{1,4}", version)[:2])
    return numbers < _WITH_HOOKS or bool(value.get("comm_lib_version"))


def _has_completed(status: Any) -> bool:
    """True if a group's status has a completion. Hooks without completions write -1."""
    last = status.get("last_completed_collective") if isinstance(status, dict) else None
    return last is not None and _integer(last, "last_completed_collective") >= 0


def _launches(entries: Sequence[Entry]) -> list[Entry]:
    """Gives operations that were launched together the state of the launch.

    Such operations have the same sequence number. An entry named "coalesced" holds the state of the
    launch. Without this entry, the launch counts as completed.
    """
    together: dict[tuple[str, bool, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        together[entry.group, entry.is_message, entry.seq].append(entry)
    result = []
    for entry in entries:
        launch = together[entry.group, entry.is_message, entry.seq]
        if len(launch) > 1:
            states = [operation.state for operation in launch if "coalesced" in operation.op]
            entry = entry._replace(state=states[0] if states else "completed")
        whole = "coalesced" in entry.op and (len(launch) > 1 or entry.is_message)
        if not whole:
            result.append(entry)
    return result


def _dictionary(value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    dictionary = value.get(key, {})
    if not isinstance(dictionary, dict):
        raise ValueError(f"{key} is not a dictionary")
    return {str(name): item for name, item in dictionary.items()}


def _is_behind(status: Any) -> bool:
    if not isinstance(status, dict):
        return False
    last, done = (status.get(f"last_{which}_collective") for which in ("enqueued", "completed"))
    return last is not None and done is not None and str(last) != str(done)


def _description(group: Mapping[str, Any]) -> str:
    text = str(group.get("desc", ""))[:100]
    return "" if text == "undefined" else text


def _ranks(config: Mapping[str, Any]) -> tuple[int, ...]:
    return _numbers_in(str(config.get("ranks", ""))[: 1 << 20])


@lru_cache(maxsize=1 << 8)
def _numbers_in(text: str) -> tuple[int, ...]:
    """Returns the numbers in a text. Results are cached, because many dumps have the same text."""
    return tuple(map(int, re.findall(r"\d{1,7}", text)))


def _in_status(
    key: str, status: Mapping[str, Any], ids: Mapping[int, str], names: Sequence[str]
) -> dict[str, int]:
    """Returns the field ``key`` of each group's status, by group name.

    ``status`` is the dump's ``pg_status``. Its keys are group ids, which count the groups in the
    order of creation. ``ids`` maps the ids of groups with entries to names. If possible, other ids
    are matched with ``names`` in ascending order.
    """
    numbers = sorted(int(key) for key in status if key.isdecimal())
    known = dict(ids)
    in_order = len(names) == 1 or all(name.isdecimal() for name in names)
    if len(numbers) == len(names) and in_order:
        by_number = sorted(names, key=lambda name: int(name) if name.isdecimal() else 0)
        ordered = dict(zip(numbers, by_number, strict=True))
        if all(ordered.get(number) == name for number, name in ids.items()):
            known = ordered
    found = {}
    for number, name in known.items():
        one = status.get(str(number))
        last = one.get(key) if isinstance(one, dict) else None
        if last is not None:
            found[name] = _integer(last, key)
    return found


class _Description(NamedTuple):
    """An entry without its numbers and times. Alike entries have equal descriptions."""

    #: Fields of ``Entry`` before ``seq``.
    before: tuple[str, str, str, bool]
    #: Fields of ``Entry`` between ``seq`` and ``created_ns``.
    between: tuple[int, str, int, int, str]
    #: Fields of ``Entry`` after ``created_ns``.
    after: tuple[bool, str]
    pg_id: int
    #: Name of the field with the entry's sequence number.
    number: str
    names_group: bool


class _Entries:
    """Makes the entries of several dumps. Alike entries are decoded only once."""

    def __init__(self) -> None:
        self._alike = alike_entries()
        self._descriptions: dict[int, _Description] = {}

    def of(self, values: list[Any]) -> tuple[list[Entry], list[_Description], list[int]]:
        """Makes the entries of a dump from decoded values.

        Also returns the different descriptions, and the ``record_id`` of each value.

        Raises:
            ValueError: a value does not have the structure of an entry.
        """
        numbered, integers = self._alike.read(values)
        numbers = numbered.tolist()
        for number in dict.fromkeys(numbers):
            if number not in self._descriptions:
                self._descriptions[number] = _description_of(values[numbers.index(number)])
        columns = dict(zip(INTEGERS, integers.T.tolist(), strict=True))
        created_ns, record = columns["time_created_ns"], columns["record_id"]
        used = [self._descriptions[number] for number in dict.fromkeys(numbers)]
        replaced = _replaced(used)
        entries = []
        for row, number in enumerate(numbers):
            about = self._descriptions[number]
            if replaced and about.pg_id in replaced:
                continue
            seq, created = columns[about.number][row], created_ns[row]
            if seq < 0 or created < 0:
                seq, created = _number_and_time(values[row], about.number)
            entries.append(Entry._make((*about.before, seq, *about.between, created, *about.after)))
        if min(record, default=0) < 0:
            record = [_integer(value.get("record_id", 0), "record_id") for value in values]
        return entries, [about for about in used if about.pg_id not in replaced], record


def _replaced(used: Iterable[_Description]) -> set[int]:
    """Returns the ids of groups that a later group of the same name and backend replaced.

    If a script destroys its process groups and makes new groups, c10d uses the old names and
    numbers again. Operations that were pending in a destroyed group do not count.
    """
    ids: dict[tuple[str, str], set[int]] = {}
    for about in used:
        name, backend = about.before[:2]
        if name and about.names_group:
            ids.setdefault((name, backend), set()).add(about.pg_id)
    return {pg_id for same in ids.values() for pg_id in same if pg_id < max(same)}


def _number_and_time(value: Mapping[str, Any], number: str) -> tuple[int, int]:
    return (
        _integer(value.get(number, value.get("seq_id")), number),
        _integer(value.get("time_created_ns", value.get("record_id")), "time_created_ns"),
    )


def _description_of(value: Mapping[str, Any]) -> _Description:
    pg_id = _integer(value.get("pg_id", -1), "pg_id")
    group = value.get("process_group", str(pg_id))
    group = [group] if isinstance(group, str) else group  # a group without a description
    if not isinstance(group, tuple | list) or not group or not isinstance(group[0], str):
        raise ValueError("an entry's process_group is not a pair of strings")
    state, name = value.get("state") or _state_of(value), value.get("profiling_name")
    if state not in _STATES or not isinstance(name, str):
        raise ValueError("an entry has an unknown state or no profiling_name")
    backend, op, message = _profiled(name)
    if state == "scheduled" and value.get("time_discovered_started_ns"):
        state = "started"
    if value.get("retired") and state != "completed":
        state = "completed" if backend == "gloo" else _RETIRED
    message = message if value.get("is_p2p", True) else None
    is_message = bool(value.get("is_p2p", message))
    op = message[0] if message else _OPS.get(op.lower(), op)
    bytes_out = _bytes(value.get("output_sizes"), value.get("output_dtypes"))
    if (backend, op) == ("gloo", "all_reduce"):
        op = _called(value.get("frames"))
        if op != "all_reduce":
            bytes_out = -1  # the recorded size is that of the all-reduce
    bytes_in = _bytes(value.get("input_sizes"), value.get("input_dtypes"))
    dtype = _dtype(value.get("input_dtypes")) or _dtype(value.get("output_dtypes"))
    return _Description(
        before=(group[0], backend[:80], op[:80], is_message),
        between=(message[1] if message else -1, state, bytes_in, bytes_out, dtype),
        after=(bool(value.get("time_discovered_started_ns")), _path_of(value.get("frames"))),
        pg_id=pg_id,
        number="p2p_seq_id" if is_message else "collective_seq_id",
        names_group="process_group" in value,
    )


@lru_cache(maxsize=1 << 12)
def _profiled(name: str) -> tuple[str, str, tuple[str, int] | None]:
    """Splits a ``profiling_name`` into the backend and the operation.

    For a point-to-point message, the third value is the kind and the peer (-1: any rank). For other
    operations it is None.
    """
    backend, _, op = name.rpartition(":")
    message = _MESSAGE.match(op)
    if message is None:
        return backend, op, None
    if message[3] == "?":
        return backend, op, (f"{message[1]}_any_source", -1)
    return backend, op, (message[1], int(message[3]))


def _state_of(value: Mapping[str, Any]) -> str:
    if value.get("retired") or value.get("time_discovered_completed_ns"):
        return "completed"
    return "scheduled"


def _path_of(frames: Any) -> str:
    lines = []
    for frame in frames[:_MOST_FRAMES] if isinstance(frames, list) else ():
        file = str(frame.get("filename", "")) if isinstance(frame, dict) else ""
        if file and not _is_of_library_file(file):
            lines.append(f"{file.rpartition('/')[2][:80]}:{str(frame.get('line', '?'))[:10]}")
    return CALLED_AT.join(lines[:_MOST_LINES])


def _called(frames: Any) -> str:
    """Returns the operation that the script called if gloo recorded an all-reduce.

    Without a stack, as in JSON, the result is "all_reduce".
    """
    for frame in frames[:_MOST_FRAMES] if isinstance(frames, list) else ():
        if not isinstance(frame, dict) or "/torch/distributed/" not in str(frame.get("filename")):
            break
        if op := _RUN_AS_ALL_REDUCE.get(str(frame.get("name"))):
            return op
    return "all_reduce"


@lru_cache(maxsize=1 << 12)
def _is_of_library_file(file: str) -> bool:
    return _OF_LIBRARY.search(file) is not None


def _dtype(dtypes: Any) -> str:
    return c10d_type(str(dtypes[0])[:40]) if isinstance(dtypes, list) and dtypes else ""


def _bytes(sizes: Any, dtypes: Any) -> int:
    if not isinstance(sizes, list) or not isinstance(dtypes, list):
        return -1
    total = 0
    for dims, dtype in zip(sizes, dtypes, strict=False):
        size = element_bytes(str(dtype)[:40])
        if not size or not isinstance(dims, list):
            return -1
        for dim in dims:
            length = dim if type(dim) is int and 0 <= dim < 2**63 else _integer(dim, "a size")
            size = min(size * length, _LARGEST_SIZE)
        total += size
    return total


def _integer(value: Any, name: str) -> int:
    if type(value) is int and 0 <= value < 2**63:  # true for nearly all values
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise ValueError(f"{name} is not an integer of 64 bits")
    return value
