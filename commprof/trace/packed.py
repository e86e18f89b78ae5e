"""The records of one trace in a tenth of their bytes: a column for each kind and field.

Most fields of a kind never change, and the others need few bytes once the smallest value is taken
off. So a report of many ranks holds all of their records. A column is widened as it is read, and
its times are converted to another clock then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from commprof.trace.lookup import among
from commprof.trace.schema import RECORD_DTYPE, TIME_IN_VALUE, Kind, Records

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]
#: Kinds of records, kinds that occur, how often, [kind, field, (base, width, offset)], and bytes.
Parts = tuple[
    npt.NDArray[np.uint8],
    npt.NDArray[np.uint8],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint8],
]

#: Fields of a record without its kind, and the place of each.
_FIELDS = tuple(name for name in RECORD_DTYPE.names or () if name != "kind")
_PLACE = {name: place for place, name in enumerate(_FIELDS)}
_NARROW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class PackedRecords:
    """All records of a trace, in place of an array of ``schema.RECORD_DTYPE``.

    Whatever chooses rows of several kinds (``compress``, ``take``, indices) puts all records
    together first; ``of_kind`` does not.
    """

    #: Kind of each record, in the order of the records.
    kinds: npt.NDArray[np.uint8]
    _present: tuple[int, ...]
    _counts: tuple[int, ...]
    _fields: npt.NDArray[np.uint64]
    _data: npt.NDArray[np.uint8]
    #: Converts times as they are read; None for times as they were recorded.
    _to_common: Callable[[Ints], Ints] | None = None

    def __len__(self) -> int:
        """Number of records."""
        return len(self.kinds)

    def of_kind(self, kind: int) -> KindRecords:
        """Returns the records of one kind, in their order."""
        return KindRecords(self, int(kind))

    def of_kinds(self, *kinds: int) -> Records:
        """Returns an array of the records of some kinds, in their order."""
        order = self.kinds.compress(among(self.kinds, *kinds))
        records = np.zeros(len(order), dtype=RECORD_DTYPE)
        records["kind"] = order
        for kind in set(self._present).intersection(map(int, kinds)):
            rows = order == kind
            for field in _FIELDS:
                records[field][rows] = self.column(kind, field)
        return records

    def on_clock(self, to_common: Callable[[Ints], Ints]) -> PackedRecords:
        """Returns the records with their times on another clock; clock comparisons keep theirs."""
        return replace(self, _to_common=to_common)

    def count(self, kind: int) -> int:
        """Returns the number of records of a kind."""
        return self._counts[self._present.index(kind)] if kind in self._present else 0

    def column(self, kind: int, field: str) -> Column:
        """Returns a field of the records of one kind; one value in all rows takes no memory."""
        dtype = RECORD_DTYPE[field]
        if kind not in self._present:
            return np.empty(0, dtype=dtype)
        if field == "kind":
            return np.broadcast_to(dtype.type(kind), (self.count(kind),))
        place = self._present.index(kind)
        base, width, offset = self._fields[place, _PLACE[field]].tolist()
        count = self._counts[place]
        if width == 0:
            column: Column = np.broadcast_to(dtype.type(base), (count,))
        else:
            bytes_ = self._data[offset : offset + width * count]
            column = bytes_.view(_NARROW[width]).astype(dtype)
            if base:
                column += dtype.type(base)
        return self._converted(kind, field, column)

    def _converted(self, kind: int, field: str, column: Column) -> Column:
        if self._to_common is None:
            return column
        if field == "timestamp_ns" and kind != Kind.CLOCK:
            return self._to_common(column.astype(np.int64)).astype(np.uint64)
        if field == "value" and kind in TIME_IN_VALUE:
            moved = self._to_common(column.astype(np.int64)).astype(np.uint64)
            return np.where(column > 0, moved, column)
        return column

    def __getitem__(self, chosen: Any) -> Any:
        """Returns a column by the field's name, or records by a mask, rows or a slice."""
        if not isinstance(chosen, str):
            return self._whole[chosen]
        if chosen == "kind":
            return self.kinds
        column = np.empty(len(self), dtype=RECORD_DTYPE[chosen])
        for kind in self._present:
            column[self.kinds == kind] = self.column(kind, chosen)
        return column

    def compress(self, chosen: npt.NDArray[np.bool_]) -> Records:
        """Returns the records under a mask."""
        return self._whole.compress(chosen)

    def take(self, rows: Ints) -> Records:
        """Returns some records."""
        return self._whole.take(rows)

    def copy(self) -> Records:
        """Returns an array of all records, which may be written to."""
        return self._whole.copy()

    def view(self) -> PackedRecords:
        """Returns itself, which nothing can change."""
        return self

    @property
    def flags(self) -> Any:
        """Flags of an array, of which ``writeable`` is False."""
        return self.kinds.flags

    @property
    def _whole(self) -> Records:
        return self.of_kinds(*self._present)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Records:
        """Returns all records."""
        return self._whole


class KindRecords:
    """Records of one kind, of which columns and rows are read as from an array of records."""

    def __init__(self, packed: PackedRecords, kind: int, rows: Ints | None = None) -> None:
        self._packed, self._kind, self._rows = packed, kind, rows

    def __len__(self) -> int:
        return self._packed.count(self._kind) if self._rows is None else len(self._rows)

    @property
    def size(self) -> int:
        """Number of records."""
        return len(self)

    def __getitem__(self, chosen: Any) -> Any:
        """Returns a column by the field's name, or records by a mask, rows or a slice."""
        if not isinstance(chosen, str):
            return np.asarray(cast("Records", self))[chosen]
        column = self._packed.column(self._kind, chosen)
        if self._rows is None:
            return column
        if column.strides == (0,):
            return np.resize(column[:1], len(self._rows))
        return column[self._rows]

    def compress(self, chosen: npt.NDArray[np.bool_]) -> KindRecords:
        """Returns the records under a mask."""
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
    return records.compress(records["kind"] == kind)


def packed(records: Records | PackedRecords) -> PackedRecords:
    """Packs an array of records; returns records that are packed already as they are."""
    if isinstance(records, PackedRecords):
        return records
    kinds, present, counts, fields, data = packing()(np.ascontiguousarray(records).view(np.uint8))
    kinds.flags.writeable = False
    return PackedRecords(kinds, tuple(present.tolist()), tuple(counts.tolist()), fields, data)


def packing() -> Callable[[npt.NDArray[np.uint8]], Parts]:
    """Returns the function that packs; imports the module now, as ranks that train never pack."""
    try:
        from commprof._reading import pack_records
    except ImportError:  # the module was not built, or is an older one: the same in Python
        return pack_in_python
    return pack_records


def pack_in_python(raw: npt.NDArray[np.uint8]) -> Parts:
    """Does what ``csrc/reading/packed_records.cpp`` does; takes the bytes of whole records."""
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
            if width:
                at = -(-at // width) * width
                column -= np.uint64(base)
                columns.append(np.zeros(at - sum(map(len, columns)), dtype=np.uint8))
                columns.append(column.astype(_NARROW[width]).view(np.uint8))
            fields[place, field] = base, width, at if width else 0
            at += width * len(column)
    data = np.concatenate(columns) if columns else np.zeros(0, dtype=np.uint8)
    return kinds, present, counts.astype(np.uint64), fields, data
