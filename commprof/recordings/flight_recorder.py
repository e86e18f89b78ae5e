"""Dumps of c10d's Flight Recorder: what each rank had scheduled, started and completed.

Versions 2.x, pickled or JSON, all entries or the active ones alone. What differs between them:
a dump of active entries says of completed ones only the number that ``pg_status`` has; gloo keeps
no state, so an entry that it has retired is complete; NCCL numbers messages per rank and group, so
those of two ranks are matched in the order in which they are pending.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from commprof.errors import TraceError
from commprof.files import open_regular, read_bytes
from commprof.invocation import quoted
from commprof.recordings.containers import each_file, is_packed
from commprof.recordings.flight_recorder_pickle import read_plain_pickle
from commprof.text import printable

_NAME = re.compile(
    r"(?:.*\D)?(\d{1,7})(?:\.(?:json|pickle|pkl|pt|bin|dump))?(?:\.gz)?|.*rank[_-]?(\d{1,7})\D.*",
    re.IGNORECASE,
)
_LARGEST_BYTES = 1 << 30
_HEAD_BYTES = 1 << 16
#: Of a tensor, in bytes; a damaged dump may say more.
_LARGEST_SIZE = 1 << 63
_PICKLE = b"\x80"
_OF_TORCH_PROFILER = b'"traceEvents"'
#: What stands in a run directory, whose folders hold no dumps.
_OF_COMMPROF = "run.json"
_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_STATES = ("scheduled", "started", "completed")
_OPS = {
    "allreduce": "all_reduce",
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_to_allv": "all_to_all_single",
}
_SIZES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}


@dataclass(frozen=True)
class Entry:
    """One operation in a rank's dump."""

    group: str
    #: "nccl", "gloo", ...
    backend: str
    #: c10d's public name; of a message "send" or "recv".
    op: str
    is_message: bool
    #: Of collectives the group's number; of messages this rank's own.
    seq: int
    #: Of a message the other rank in the group; else -1.
    peer: int
    #: "scheduled", "started" or "completed".
    state: str
    #: -1 where the element type's size is not known.
    bytes_in: int
    bytes_out: int
    dtype: str
    created_ns: int


@dataclass(frozen=True)
class Dump:
    """One rank's dump."""

    rank: int
    version: str
    #: Global ranks by group's name; without those that the dump does not tell.
    members: Mapping[str, tuple[int, ...]]
    descriptions: Mapping[str, str]
    entries: tuple[Entry, ...]
    #: The last collective or message that the rank handed to a group, by group's name.
    last_enqueued: Mapping[str, int]
    #: Whether it holds the completed entries too.
    is_full: bool


def is_flight_recorder(path: Path) -> bool:
    """Whether a path is a dump, or a folder or an archive that holds at least one."""

    def first(head: bytes) -> bool:
        if _is_dump(head) or _OF_TORCH_PROFILER in head:
            raise _FoundError(_is_dump(head))
        return False

    try:
        if path.is_file():
            each_file(path, first, lambda name, stream: None)
            return False
    except _FoundError as found:
        return bool(found.args[0]) and (is_packed(path) or _rank_in(path.name) is not None)
    return any(True for _ in _dumps_in(path))


class _FoundError(Exception):
    """Ends the search; says whether it is a dump."""


@dataclass(frozen=True)
class _Found:
    """A file that looks like a dump, or a member of an archive."""

    file: Path
    rank: int
    #: Of a member; a file is read when it is its turn.
    data: bytes | None = None

    def value(self) -> Any:
        """What it holds."""
        data = read_bytes(self.file, _LARGEST_BYTES) if self.data is None else self.data
        if data.startswith(_PICKLE):
            return read_plain_pickle(data)
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("it is nested too deep") from None


def _packed_dumps(path: Path) -> tuple[list[_Found], list[str]]:
    """The dumps in an archive, and what of it cannot be read."""
    found: list[_Found] = []

    def take(name: str, stream: BinaryIO) -> None:
        rank = _rank_in(Path(name).name)
        if rank is not None:
            found.append(_Found(Path(name), rank, stream.read(_LARGEST_BYTES)))

    problems = each_file(path, _is_dump, take)
    return sorted(found, key=lambda each: each.file), problems


def read_dumps(path: Path) -> tuple[list[Dump], list[str]]:
    """Those of a folder or an archive, by rank, and a line for each file that cannot be read.

    Raises:
        TraceError: there is none that can be read.
    """
    found: dict[int, Dump] = {}
    problems: list[str] = []
    if path.is_file() and is_packed(path):
        dumped, problems = _packed_dumps(path)
    else:
        dumped = list(_dumps_in(path))
    folders = sorted({each.file.parent for each in dumped})
    if len(folders) > 1:
        named = ", ".join(quoted(folder) for folder in folders[:10])
        raise TraceError(f"{quoted(path)} holds dumps in several folders; report one: {named}")
    for each in dumped:
        file, rank = each.file, each.rank
        try:
            dump = _dump(rank, each.value())
        except (OSError, ValueError) as error:
            what = printable(str(error).splitlines()[0] if str(error) else "damaged")
            problems.append(f"{quoted(file)} is no readable Flight Recorder dump: {what}")
            continue
        if rank in found:
            problems.append(f"{quoted(file)} is left out: rank {rank} has another dump")
        else:
            found[rank] = dump
    if not found:
        raise TraceError(
            problems[0] if problems else f"{quoted(path)} holds no Flight Recorder dump"
        )
    return [found[rank] for rank in sorted(found)], problems


def members_of(dumps: Sequence[Dump]) -> dict[str, tuple[int, ...]]:
    """Global ranks by group's name; where no dump tells, those that used the group."""
    members: dict[str, tuple[int, ...]] = {}
    for dump in dumps:
        members.update(dump.members)
    users: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        for entry in dump.entries:
            users[entry.group].add(dump.rank)
            if entry.group == "0":  # c10d's name of the group of all ranks
                users["0"].update(one.rank for one in dumps)
    return {**{group: tuple(sorted(ranks)) for group, ranks in users.items()}, **members}


def _dumps_in(path: Path) -> Iterator[_Found]:
    """Files that look like dumps, by name and by their first bytes, with their ranks.

    Of a folder without one, those in the folders in it.
    """
    if not path.is_dir():
        yield from _among([path])
        return
    inside = sorted(path.iterdir())
    some = False
    for found in _among(inside):
        some = True
        yield found
    for folder in inside:
        if not some and folder.is_dir() and not (path / _OF_COMMPROF).exists():
            yield from _among(sorted(folder.iterdir()))


def _among(files: Iterable[Path]) -> Iterator[_Found]:
    for file in files:
        rank = _rank_in(file.name)
        if rank is None or not file.is_file():
            continue
        try:
            with open_regular(file) as opened:
                head = opened.read(_HEAD_BYTES)
        except OSError:
            continue
        if _is_dump(head):
            yield _Found(file, rank)


def _rank_in(name: str) -> int | None:
    """The rank that a file's name says."""
    named = _NAME.fullmatch(name)
    return int(named[1] or named[2]) if named else None


def _is_dump(head: bytes) -> bool:
    """By a file's first bytes; a trace of torch.profiler has some of the same words."""
    if head.startswith(_PICKLE):
        return any(key in head for key in (b"pg_config", b"pg_status", b"collective_seq_id"))
    keys = any(key in head for key in (b'"pg_status"', b'"collective_seq_id"'))
    return head.lstrip().startswith(b"{") and keys and _OF_TORCH_PROFILER not in head


def _dump(rank: int, value: Any) -> Dump:
    """Of what a file holds.

    Raises:
        ValueError: it has not the shape of a dump.
    """
    if not isinstance(value, dict) or not isinstance(value.get("entries", []), list):
        raise ValueError("it has no list of entries")
    version = str(value.get("version", ""))[:20]
    if not version.startswith("2."):
        raise ValueError(f"version {version!r} is not known here (allowed: 2.x)")
    config, status = (_dictionary(value, key) for key in ("pg_config", "pg_status"))
    found = [_entry(one) for one in value.get("entries", [])]
    entries = _launches([entry for entry, _ in found])
    ids = {pg_id: entry.group for entry, pg_id in found}
    if any(entry.backend == "gloo" for entry in entries):
        status = {}  # it counts operations of which there are no entries
    named = {name: one for name, one in config.items() if name and isinstance(one, dict)}
    return Dump(
        rank=rank,
        version=version,
        members={name: ranks for name, one in named.items() if (ranks := _ranks(one))},
        descriptions={name: str(one.get("desc", ""))[:100] for name, one in named.items()},
        entries=tuple(entries),
        last_enqueued=_last_enqueued(status, ids, list(named)),
        is_full=any(entry.state == "completed" for entry in entries),
    )


def _launches(entries: Sequence[Entry]) -> list[Entry]:
    """Entries with the state of their launch.

    Operations that are launched together share a number, and have no state of their own: an entry
    named "coalesced" has it. If that is not there, it had completed and was left out.
    """
    together: dict[tuple[str, bool, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        together[entry.group, entry.is_message, entry.seq].append(entry)
    result = []
    for entry in entries:
        launch = together[entry.group, entry.is_message, entry.seq]
        if len(launch) > 1:
            states = [one.state for one in launch if "coalesced" in one.op]
            entry = replace(entry, state=states[0] if states else "completed")
        whole = "coalesced" in entry.op and (len(launch) > 1 or entry.is_message)
        if not whole:
            result.append(entry)
    return result


def _dictionary(value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    found = value.get(key, {})
    if not isinstance(found, dict):
        raise ValueError(f"{key} is no dictionary")
    return {str(name): one for name, one in found.items()}


def _ranks(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Global ranks of a group, in its order; written as a list or as one's text."""
    text = str(config.get("ranks", ""))[: 1 << 20]
    return tuple(int(number) for number in re.findall(r"\d{1,7}", text))


def _last_enqueued(
    status: Mapping[str, Any], ids: Mapping[int, str], names: Sequence[str]
) -> dict[str, int]:
    """The status is by the rank's own numbers of its groups: entries tell which name has which.

    Groups without an entry are numbered as their names are, both in the order of their making;
    this is used where it agrees with all entries.
    """
    numbers = sorted(int(key) for key in status if key.isdecimal())
    known = dict(ids)
    if len(numbers) == len(names) and all(name.isdecimal() for name in names):
        ordered = dict(zip(numbers, sorted(names, key=int), strict=True))
        if all(ordered.get(number) == name for number, name in ids.items()):
            known = ordered
    found = {}
    for number, name in known.items():
        one = status.get(str(number))
        last = one.get("last_enqueued_collective") if isinstance(one, dict) else None
        if last is not None:
            found[name] = _integer(last, "last_enqueued_collective")
    return found


def _entry(value: Any) -> tuple[Entry, int]:
    if not isinstance(value, dict):
        raise ValueError("an entry is no dictionary")
    group = value.get("process_group")
    group = [group] if isinstance(group, str) else group  # without a description
    if not isinstance(group, tuple | list) or not group or not isinstance(group[0], str):
        raise ValueError("an entry's process_group is no pair of texts")
    state, name = value.get("state"), value.get("profiling_name")
    if state not in _STATES or not isinstance(name, str):
        raise ValueError("an entry's state or profiling_name is not known here")
    backend, _, op = name.rpartition(":")
    if state == "scheduled" and value.get("time_discovered_started_ns"):
        state = "started"
    if backend == "gloo" and value.get("retired"):
        state = "completed"
    is_message = bool(value.get("is_p2p"))
    message = _MESSAGE.match(op) if is_message else None
    op = message[1] if message else _OPS.get(op.lower(), op)
    entry = Entry(
        group=group[0],
        backend=backend[:80],
        op=op[:80],
        is_message=is_message,
        seq=_integer(value.get("p2p_seq_id" if is_message else "collective_seq_id"), "a number"),
        peer=int(message[3]) if message else -1,
        state=state,
        bytes_in=_bytes(value.get("input_sizes"), value.get("input_dtypes")),
        bytes_out=_bytes(value.get("output_sizes"), value.get("output_dtypes")),
        dtype=_dtype(value.get("input_dtypes")) or _dtype(value.get("output_dtypes")),
        created_ns=_integer(value.get("time_created_ns"), "time_created_ns"),
    )
    return entry, _integer(value.get("pg_id", -1), "pg_id")


def _dtype(dtypes: Any) -> str:
    return str(dtypes[0])[:40] if isinstance(dtypes, list) and dtypes else ""


def _bytes(sizes: Any, dtypes: Any) -> int:
    if not isinstance(sizes, list) or not isinstance(dtypes, list):
        return -1
    total = 0
    for dims, dtype in zip(sizes, dtypes, strict=False):
        size = _SIZES.get(str(dtype)[:40], -1)
        if size < 0 or not isinstance(dims, list):
            return -1
        for dim in dims:
            size = min(size * _integer(dim, "a size"), _LARGEST_SIZE)
        total += size
    return total


def _integer(value: Any, name: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise ValueError(f"{name} is no integer")
    return value
