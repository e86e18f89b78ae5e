"""Stores the records of a trace in a tenth of their bytes, with a column for each kind and field.

Most columns have only one value, which is stored once. In other columns, the smallest value is
subtracted, so that few bytes per value are enough. A column is unpacked when it is read; only then
are times converted to another clock.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from commprof.trace.lookup import among, joined_column, repeated
from commprof.trace.packed_data import Bytes, InFile, PackedData
from commprof.trace.schema import MOMENTS, RECORD_DTYPE, Kind, Records

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]
#: Packed records: kind of each record; kinds that occur; number of records of each kind; a
#: ``_Stored`` for each kind; and the data.
Parts = tuple[
    npt.NDArray[np.uint8],
    npt.NDArray[np.uint8],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint8],
]

_FIELDS = tuple(name for name in RECORD_DTYPE.names or () if name != "kind")
_PLACE = {name: place for place, name in enumerate(_FIELDS)}
#: Number of records that are packed together. With a larger number, reading a short stretch of time
#: would unpack too many records.
_CHUNK_RECORDS = 1 << 14
#: Code in place of a width: the difference from the previous value is stored, in 4 bytes. See
#: csrc/reading/packed_records.h.
_DIFFERENCES = 5
_DTYPES = {name: RECORD_DTYPE[name] for name in RECORD_DTYPE.names or ()}
#: Number of bytes of each value, by width.
_BYTES = {0: 0, 1: 1, 2: 2, 4: 4, _DIFFERENCES: 4, 8: 8}
_REACH = ("first_ns", "last_ns")
_READ_ONLY = repeated(np.uint8(0), 0)
_NARROW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


#: How a chunk stores the fields of one kind, as ``[field, 3]``: base, which is subtracted from all
#: values; width of a stored value in bytes; and offset of the first stored value in the data.
_Stored = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Chunk:
    kinds: Bytes | InFile
    #: By kind: the number of its records, and how each field is stored.
    stored: dict[int, tuple[int, _Stored]]
    data: Bytes | InFile
    #: Times of the first and the last record, not converted.
    first_ns: int
    last_ns: int

    def column(self, kind: int, field: str) -> Column:
        """Returns a field of a kind, not converted; the chunk must hold this kind."""
        count, fields = self.stored[kind]
        dtype = _DTYPES[field]
        if field == "kind":
            return repeated(dtype.type(kind), count)
        base, width, offset = fields[_PLACE[field]].tolist()
        if width == 0:
            return repeated(dtype.type(base), count)
        if width == _DIFFERENCES:
            steps = self.data[offset : offset + 4 * count].view(np.int32)
            summed = np.cumsum(steps, dtype=np.int64).view(np.uint64)
            summed += np.uint64((base - int(steps[0])) % 2**64)
            return summed
        bytes_ = self.data[offset : offset + width * count]
        column: Column = bytes_.view(_NARROW[width]).astype(dtype)
        if base:
            column += dtype.type(base)
        return column

    @property
    def has_equal_times(self) -> bool:
        times, kinds = np.empty(len(self.kinds), dtype=_DTYPES["timestamp_ns"]), self.kinds[:]
        for kind in self.stored:
            times[kinds == kind] = self.column(kind, "timestamp_ns")
        return bool((times[1:] == times[:-1]).any())

    def between(self, begin_ns: int, end_ns: int) -> _Chunk:
        ends_ns = np.array((begin_ns, end_ns), dtype=np.uint64)
        first = last = 0
        stored: dict[int, tuple[int, _Stored]] = {}
        times: list[int] = []
        for kind in self.stored:
            time_ns = self.column(kind, "timestamp_ns")
            a, b = np.searchsorted(time_ns, ends_ns).tolist()
            first, last = first + a, last + b
            if a < b:
                stored[kind] = b - a, self._from(a, kind)
                times += [int(time_ns[a]), int(time_ns[b - 1])]
        reach = (min(times), max(times)) if times else (0, 0)
        return _Chunk(self.kinds[first:last], stored, self.data, *reach)

    def _from(self, row: int, kind: int) -> _Stored:
        """Returns how a kind is stored without the first ``row`` records."""
        stored = self.stored[kind][1].copy()
        width = stored[:, 1]
        in_differences = width == _DIFFERENCES
        stored[:, 2] += np.where(in_differences, 4, width) * np.uint64(row)
        for place in np.flatnonzero(in_differences).tolist():
            stored[place, 0] = self.column(kind, _FIELDS[place])[row]
        return stored


@dataclass(frozen=True)
class PackedRecords:
    """All records of a trace; can be used like an array of ``schema.RECORD_DTYPE``.

    ``compress``, ``take`` and indexing by rows unpack all records; ``of_kind`` does not.
    """

    _chunks: tuple[_Chunk, ...]
    #: Converts times to another clock when they are read; None leaves times unchanged.
    to_common: Callable[[Ints], Ints] | None = None

    def __len__(self) -> int:
        """Number of records."""
        return sum(len(chunk.kinds) for chunk in self._chunks)

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """Kind of each record, in the order of the records."""
        if len(self._chunks) == 1:
            return self._chunks[0].kinds[:]
        kinds = np.concatenate([np.empty(0, np.uint8), *(chunk.kinds[:] for chunk in self._chunks)])
        kinds.flags.writeable = False
        return kinds

    def of_kind(self, kind: int) -> KindRecords:
        """Returns the records of one kind."""
        return KindRecords(self, int(kind))

    def of_kinds(self, *kinds: int) -> Records:
        """Returns an array of the records of some kinds, in unchanged order."""
        order = self.kinds.compress(among(self.kinds, *kinds))
        records = np.zeros(len(order), dtype=RECORD_DTYPE)
        records["kind"] = order
        for kind in self._present.intersection(map(int, kinds)):
            rows = order == kind
            for field in _FIELDS:
                records[field][rows] = self.column(kind, field)
        return records

    def on_clock(self, to_common: Callable[[Ints], Ints]) -> PackedRecords:
        """Returns the records with times on another clock, except those of kind CLOCK."""
        return replace(self, to_common=to_common)

    def between(self, stretches_ns: Sequence[tuple[int, int]]) -> PackedRecords:
        """Returns the records whose recorded times lie in one of the given stretches.

        Args:
            stretches_ns: begin and end of each stretch, ascending; the end is excluded.
        """
        first_ns, last_ns = ([getattr(c, name) for c in self._chunks] for name in _REACH)
        chosen: list[_Chunk] = []
        for begin_ns, end_ns in stretches_ns:
            rows = slice(bisect_left(last_ns, begin_ns), bisect_left(first_ns, end_ns))
            for chunk in self._chunks[rows]:
                is_inside = begin_ns <= chunk.first_ns and chunk.last_ns < end_ns
                chosen.append(chunk if is_inside else chunk.between(begin_ns, end_ns))
        return replace(self, _chunks=tuple(chunk for chunk in chosen if len(chunk.kinds)))

    def latest(self, records: int) -> PackedRecords:
        """Returns whole chunks with at least the last ``records`` records, or all chunks."""
        first, held = len(self._chunks), 0
        while first and held < records:
            first -= 1
            held += len(self._chunks[first].kinds)
        return replace(self, _chunks=self._chunks[first:])

    def before(self, times_ns: npt.NDArray[np.uint64]) -> Ints:
        """Returns the number of records before each time, on the clock of the recording."""
        first = np.cumsum([0, *(len(chunk.kinds) for chunk in self._chunks)])
        chunk_of = np.searchsorted([chunk.last_ns for chunk in self._chunks], times_ns)
        count = first[chunk_of]
        for number in np.unique(chunk_of[chunk_of < len(self._chunks)]).tolist():
            rows, chunk = np.flatnonzero(chunk_of == number), self._chunks[number]
            for kind in chunk.stored:
                column = chunk.column(kind, "timestamp_ns")
                count[rows] += np.searchsorted(column, times_ns[rows])
        return count

    def count(self, kind: int) -> int:
        """Returns the number of records of a kind."""
        if len(self._chunks) == 1:
            rows, _ = self._chunks[0].stored.get(kind, (0, None))
            return rows
        return self._counts.get(kind, 0)

    @cached_property
    def _counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for chunk in self._chunks:
            for kind, (count, _) in chunk.stored.items():
                counts[kind] = counts.get(kind, 0) + count
        return counts

    def column(self, kind: int, field: str) -> Column:
        """Returns a field of the records of one kind; a single value of all rows is stored once."""
        parts = [chunk.column(kind, field) for chunk in self._chunks if kind in chunk.stored]
        if not parts:
            return np.empty(0, dtype=_DTYPES[field])
        column = parts[0] if len(parts) == 1 else joined_column(parts)
        return column if self.to_common is None else converted(self.to_common, kind, field, column)

    def __getitem__(self, chosen: Any) -> Any:
        """Returns the column of a field for a name, and records for a mask, rows or a slice."""
        if not isinstance(chosen, str):
            return self._whole[chosen]
        if chosen == "kind":
            return self.kinds
        column = np.empty(len(self), dtype=RECORD_DTYPE[chosen])
        for kind in self._present:
            column[self.kinds == kind] = self.column(kind, chosen)
        return column

    def compress(self, chosen: npt.NDArray[np.bool_]) -> Records:
        """Returns the records that a mask chooses."""
        return self._whole.compress(chosen)

    def take(self, rows: Ints) -> Records:
        """Returns some records."""
        return self._whole.take(rows)

    def copy(self) -> Records:
        """Returns an array of all records, which may be written to."""
        return self._whole.copy()

    def view(self) -> PackedRecords:
        """Returns this object, because nothing can change it."""
        return self

    @property
    def flags(self) -> Any:
        """Flags like those of a numpy array; ``writeable`` is False."""
        return _READ_ONLY.flags

    @property
    def _present(self) -> set[int]:
        return {kind for chunk in self._chunks for kind in chunk.stored}

    @property
    def _whole(self) -> Records:
        return self.of_kinds(*self._present)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Records:
        """Returns all records."""
        return self._whole


def converted(to_common: Callable[[Ints], Ints], kind: int, field: str, column: Column) -> Column:
    """Returns a field of the records of one kind with its times on another clock."""
    if field == "timestamp_ns" and kind != Kind.CLOCK:
        return to_common(column.astype(np.int64)).astype(np.uint64)
    if (kind, field) in MOMENTS:
        moved = to_common(column.astype(np.int64)).astype(np.uint64)
        return np.where(column > 0, moved, column)
    return column


class JoinedKind:
    """The records of one kind of several traces, in the order of the traces."""

    def __init__(self, records: Sequence[PackedRecords], kind: int) -> None:
        """Finds where each field is stored; the fields are unpacked when they are read."""
        self._kind = kind
        chunks = [[c for c in of_trace._chunks if kind in c.stored] for of_trace in records]
        self._chunks = list(itertools.chain.from_iterable(chunks))
        stored = [chunk.stored[kind] for chunk in self._chunks]
        self._rows = np.array([rows for rows, _ in stored], dtype=np.uint64)
        #: ``[chunk, field, 3]``, see ``_Stored``.
        self._stored = np.zeros((0, len(_FIELDS), 3), dtype=np.uint64)
        if stored:
            whole = np.concatenate([fields for _, fields in stored])
            self._stored = whole.reshape(len(stored), len(_FIELDS), 3)
        self._in_file = any(type(chunk.data) is InFile for chunk in self._chunks)
        #: First chunk of each trace, then the number of chunks.
        self._first: Ints = np.cumsum([0, *map(len, chunks)])
        self.counts: Ints = np.diff(np.cumsum([0, *self._rows.tolist()])[self._first])

    def part(self, traces: slice) -> JoinedKind:
        """Returns the records of some neighbouring traces."""
        part = copy(self)
        part._first = self._first[traces.start : traces.stop + 1]
        chunks = slice(*part._first[[0, -1]].tolist())
        part._chunks, part._rows = self._chunks[chunks], self._rows[chunks]
        part._stored, part.counts = self._stored[chunks], self.counts[traces]
        part._first = part._first - part._first[0]
        return part

    def column(self, field: str) -> Column:
        """Returns a field as it was recorded."""
        unpack = _unpacking()
        if unpack is None or field == "kind":
            none = np.empty(0, dtype=_DTYPES[field])
            return np.concatenate([none, *(c.column(self._kind, field) for c in self._chunks)])
        stored = np.column_stack((self._rows, self._stored[:, _PLACE[field]]))
        data = [chunk.data for chunk in self._chunks]
        if self._in_file:
            data = list(itertools.starmap(_part_of, zip(data, stored.tolist(), strict=True)))
            stored[:, 3] = 0
        return unpack(data, stored).astype(_DTYPES[field], copy=False)


def _part_of(data: Bytes | InFile, stored: Sequence[int]) -> Bytes:
    """Returns a column's bytes; ``stored`` holds number of rows, base, width and offset."""
    rows, _, width, begin = stored
    return data[begin : begin + rows * _BYTES[width]]


def columns_of(records: Sequence[Records | PackedRecords], kind: int, field: str) -> Column:
    """Returns a field of all records of one kind, trace by trace; times are not converted."""
    return fields_of(records, kind, field)[0]


def fields_of(
    records: Sequence[Records | PackedRecords], kind: int, *names: str
) -> tuple[Column, ...]:
    """Returns several fields of the records of one kind, see :func:`columns_of`."""
    of_packed = [of_trace for of_trace in records if isinstance(of_trace, PackedRecords)]
    if len(of_packed) == len(records):
        return tuple(map(JoinedKind(of_packed, kind).column, names))
    return tuple(_column_of(records, kind, name) for name in names)


def _column_of(records: Sequence[Records | PackedRecords], kind: int, field: str) -> Column:
    parts = [
        replace(of_trace, to_common=None).column(kind, field)
        if isinstance(of_trace, PackedRecords)
        else records_of(of_trace, kind)[field]
        for of_trace in records
    ]
    return np.concatenate([np.empty(0, dtype=_DTYPES[field]), *parts])


class KindRecords:
    """Records of one kind; can be read like an array of records."""

    def __init__(self, packed: PackedRecords, kind: int, rows: Ints | None = None) -> None:
        self._packed, self._kind, self._rows = packed, kind, rows

    def __len__(self) -> int:
        return self._packed.count(self._kind) if self._rows is None else len(self._rows)

    @property
    def size(self) -> int:
        """Number of records."""
        return len(self)

    def __getitem__(self, chosen: Any) -> Any:
        """Returns the column of a field for a name, and records for a mask, rows or a slice."""
        if not isinstance(chosen, str):
            return np.asarray(cast("Records", self))[chosen]
        column = self._packed.column(self._kind, chosen)
        if self._rows is None:
            return column
        if column.strides == (0,):
            return np.resize(column[:1], len(self._rows))
        return column[self._rows]

    def compress(self, chosen: npt.NDArray[np.bool_]) -> KindRecords:
        """Returns the records that a mask chooses."""
        return self.take(np.flatnonzero(chosen))

    def take(self, rows: Ints) -> KindRecords:
        """Returns some records."""
        kept = rows if self._rows is None else self._rows[rows]
        return KindRecords(self._packed, self._kind, kept)

    def copy(self) -> Records:
        """Returns an array of the records, which may be written to."""
        return np.array(cast("Records", self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Records:
        """Returns an array of the records."""
        records = np.zeros(len(self), dtype=RECORD_DTYPE)
        for field in RECORD_DTYPE.names or ():
            records[field] = self[field]
        return records


def records_of(records: Records, kind: int) -> Records:
    """Returns the records of one kind."""
    if isinstance(records, PackedRecords):
        return cast("Records", records.of_kind(kind))
    return records.compress(records["kind"] == int(kind))  # numpy converts members of enums slowly


def in_parts(records: Records, kind: int, *names: str) -> Iterator[tuple[Column, ...]]:
    """Yields fields of the records of one kind, in parts of some thousand records.

    Parts need less memory than the whole columns of a long run.
    """
    if not isinstance(records, PackedRecords):
        chosen = records_of(records, kind)
        yield tuple(chosen[name] for name in names)
        return
    if len(records._chunks) == 1:
        if kind in records._chunks[0].stored:
            yield tuple(records.column(kind, name) for name in names)
        return
    for chunk in records._chunks:
        if kind in chunk.stored:
            part = replace(records, _chunks=(chunk,))
            yield tuple(part.column(kind, name) for name in names)


def records_before(records: Records, times_ns: npt.NDArray[np.uint64]) -> Ints:
    """Returns the number of records before each time, on the clock of the recording."""
    if isinstance(records, PackedRecords):
        return records.before(times_ns)
    return np.searchsorted(records["timestamp_ns"], times_ns)


def packed(records: Records | PackedRecords) -> PackedRecords:
    """Packs records; returns packed records unchanged."""
    if isinstance(records, PackedRecords):
        return records
    cuts = range(0, len(records), _CHUNK_RECORDS)
    return PackedRecords(tuple(_chunk(records[at : at + _CHUNK_RECORDS]) for at in cuts))


class Packer:
    """Packs records while they are read from a file, to save memory.

    The records of a file are nearly in the order of time. If a record comes too late, all records
    are sorted at the end.
    """

    def __init__(self, data: PackedData | None = None) -> None:
        """``data`` is the storage for packed records; None keeps packed records in memory."""
        self.data = data
        self._waiting: list[Records] = []
        self._chunks: list[_Chunk] = []
        self._newest_ns = 0
        self._in_order = True

    def add(self, records: Records) -> None:
        """Takes the next records of a file."""
        self._waiting.append(records)
        if sum(map(len, self._waiting)) >= 2 * _CHUNK_RECORDS:
            whole = in_order(self._waiting)
            self._pack(whole[:_CHUNK_RECORDS])
            self._waiting = [whole[_CHUNK_RECORDS:].copy()]

    def add_packed(self, parts: Parts, first_ns: int, last_ns: int) -> None:
        """Takes all records of a file in packed form, and the times of the first and last one."""
        if len(parts[0]):
            self._chunks.append(_packed_chunk(parts, (first_ns, last_ns), self.data))

    def finish(self) -> PackedRecords:
        """Returns all records that were added, in the order of time."""
        whole = in_order(self._waiting)
        for at in range(0, len(whole), _CHUNK_RECORDS):
            self._pack(whole[at : at + _CHUNK_RECORDS])
        records = PackedRecords(tuple(self._chunks))
        return records if self._in_order else packed(in_order([records.copy()]))

    def _pack(self, records: Records) -> None:
        time_ns = records["timestamp_ns"]
        self._in_order &= not len(time_ns) or int(time_ns[0]) >= self._newest_ns
        self._newest_ns = max(self._newest_ns, int(time_ns[-1])) if len(time_ns) else 0
        self._chunks.append(_chunk(records, self.data))


def in_order(batches: Sequence[Records]) -> Records:
    """Joins records and sorts them by time; leaves out empty rows."""
    if not batches:
        return np.empty(0, dtype=RECORD_DTYPE)
    # Records are joined as bytes, because numpy would copy records field by field.
    records = np.concatenate([batch.view(np.uint8) for batch in batches]).view(RECORD_DTYPE)
    if not records["kind"].all():
        records = records.compress(records["kind"] != Kind.NONE)
    time_ns = records["timestamp_ns"]
    if (time_ns[1:] < time_ns[:-1]).any():
        records = records.take(np.argsort(time_ns, kind="stable"))
    return records


def without_twins(records: Records) -> Records:
    """Drops duplicates from records that are sorted by time."""
    same_time = records["timestamp_ns"][1:] == records["timestamp_ns"][:-1]
    suspects = np.flatnonzero(np.append(same_time, False) | np.append(False, same_time))
    raw = records.take(suspects).view(f"V{RECORD_DTYPE.itemsize}")
    _, first = np.unique(raw, return_index=True)
    keep = np.ones(len(records), dtype=np.bool_)
    keep[suspects] = False
    keep[suspects[first]] = True
    return records.compress(keep)


def joined_once(records: PackedRecords, added: Sequence[Records]) -> PackedRecords:
    """Joins the records of a file and other records; equal records are kept once.

    Only chunks that may hold equal records are unpacked.

    Args:
        records: records of a file, in the order of time.
        added: other records, such as those of a dead process's rings.
    """
    others = in_order(added)
    first_ns = int(others["timestamp_ns"][0]) if len(others) else 2**64
    chunks: list[_Chunk] = []
    together: list[_Chunk] = []  # chunks that may hold equal records
    until_ns = 0
    for chunk in records._chunks:
        if together and until_ns < min(chunk.first_ns, first_ns):
            chunks += _once(together, others[:0])
            together = []
        together.append(chunk)
        until_ns = chunk.last_ns
    return replace(records, _chunks=(*chunks, *_once(together, others)))


def _once(chunks: Sequence[_Chunk], others: Records) -> Sequence[_Chunk]:
    if len(chunks) <= 1 and not len(others) and not any(chunk.has_equal_times for chunk in chunks):
        return chunks
    whole = in_order([PackedRecords(tuple(chunks)).copy(), others])
    return packed(without_twins(whole))._chunks


def _chunk(records: Records, held: PackedData | None = None) -> _Chunk:
    raw = np.ascontiguousarray(records).view(np.uint8)
    reach = records["timestamp_ns"][[0, -1]].tolist() if len(records) else (0, 0)
    return _packed_chunk(packing()(raw), reach, held)


def _packed_chunk(parts: Parts, reach: Sequence[int], held: PackedData | None) -> _Chunk:
    kinds, present, counts, fields, data = parts
    kinds.flags.writeable = False
    stored = dict(zip(present.tolist(), zip(counts.tolist(), fields, strict=True), strict=True))
    if held is None:
        return _Chunk(kinds, stored, data, *reach)
    return _Chunk(held.hold(kinds), stored, held.hold(data), *reach)


def _unpacking() -> Callable[[list[Any], npt.NDArray[np.uint64]], npt.NDArray[np.uint64]] | None:
    try:
        from commprof._reading import unpack_columns
    except ImportError:  # the module was not built, or is too old
        return None
    return unpack_columns


def packing() -> Callable[[npt.NDArray[np.uint8]], Parts]:
    """Returns the function that packs records, in C++ if possible."""
    try:
        from commprof._reading import pack_records
    except ImportError:  # the module was not built, or is too old
        return pack_in_python
    return pack_records


def pack_in_python(raw: npt.NDArray[np.uint8]) -> Parts:
    """Packs records in the same way as ``csrc/reading/packed_records.cpp``.

    ``raw`` holds the bytes of whole records.
    """
    records = raw.view(RECORD_DTYPE)
    kinds = records["kind"].copy()
    present, counts = np.unique(kinds, return_counts=True)
    fields = np.zeros((len(present), len(_FIELDS), 3), dtype=np.uint64)
    columns: list[npt.NDArray[np.uint8]] = []
    at = 0
    for place, kind in enumerate(present.tolist()):
        chosen = records.compress(kinds == kind)
        for field, name in enumerate(_FIELDS):
            column = chosen[name].astype(np.uint64)
            base = int(column.min())
            most = int(column.max()) - base
            width = next(w for w in (0, 1, 2, 4, 8) if most < 2 ** (8 * w))
            steps = np.diff(column, prepend=column[:1]).view(np.int64)
            if width == 8 and (steps == steps.astype(np.int32)).all():
                at = -(-at // 4) * 4
                columns.append(np.zeros(at - sum(map(len, columns)), dtype=np.uint8))
                columns.append(steps.astype(np.int32).view(np.uint8))
                fields[place, field] = int(column[0]), _DIFFERENCES, at
                at += 4 * len(column)
                continue
            if width:
                at = -(-at // width) * width
                column -= np.uint64(base)
                columns.append(np.zeros(at - sum(map(len, columns)), dtype=np.uint8))
                columns.append(column.astype(_NARROW[width]).view(np.uint8))
            fields[place, field] = base, width, at if width else 0
            at += width * len(column)
    data = np.concatenate(columns) if columns else np.zeros(0, dtype=np.uint8)
    return kinds, present, counts.astype(np.uint64), fields, data
