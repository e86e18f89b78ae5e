"""Reads one table in the printed text of nccl-tests or rccl-tests.

``writeResultHeader`` prints the column names; it is in ``util.cu``, before 2.17.7 in ``common.cu``.
Before 2.13 each test prints its own names. A row begins with a description of the test: size, count
and type, and in some tables redop and root. One or two results follow. nccl-tests prints a row in
several parts, so output of other processes may stand between the parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from commprof.recordings.nccl_tests_rows import (
    NcclTestsRow,
    TestedFigure,
    TestedSpread,
    figure,
    number,
)

HEADER = re.compile(r"((?:size\s+count|bytes\s+N)\s+type\b.*?(?:time\b|algbw).*)$")
"""The line of column names. A launcher's label may stand before the first name."""
_PLACE = re.compile(r"\bout-of-place\b|(?<!of-)\bin-place\b")
_DESCRIPTION = re.compile(r"(?<!\S)(\d+)[ \t]+(\d+)[ \t]+([A-Za-z]\w*)(?!\S)")
_WORD = re.compile(r"\S+")
_CELL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\*?|N/A|[-+]?(?:nan|inf)")
_REDOP = re.compile(r"[A-Za-z]+")
#: Names of element types. A line without results counts as a row only if it has such a name.
_TYPE = re.compile(r"u?int\d*|char|half|double|b?float\w*|bf16|fp?\d+\w*")
_ROOT = re.compile(r"-?\d+(?![\d.])")
#: Columns of numbers. ``_NAMES_OF_WRONG`` and columns ``i_*`` hold numbers, too. All other columns
#: may hold any word.
_NUMBERS = ("time", "gputime", "cputime", "hipevt", "algbw", "busbw")
_NAMES_BEHIND = ("timestamp", "algo", "proto", "nchannels")
_NAMES_OF_TIME = ("time", "gputime")
_NAMES_OF_WRONG = ("#wrong", "wrong", "error", "errors", "res")
#: Columns with the largest error instead of the number of wrong elements, before 2.13.
_NAMES_OF_DELTA = ("error", "errors", "res")
#: Largest error that nccl-tests before 2.13 allows on two ranks, by type. On n ranks, this value is
#: multiplied by n - 1 (``DeltaMaxValue``).
_DELTAS = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
_LEAST_DELTA = 1e-200


@dataclass(frozen=True)
class _Description:
    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int


@dataclass(frozen=True)
class _Pending:
    """A row without all of its results; the missing results may follow in a later line."""

    described: _Description
    places: list[str]
    #: Cells of the first missing result, as far as they were read.
    cells: list[str]
    #: True if other output interrupted the row; False if the line ends.
    broken: bool


class Table:
    """Reads the rows of a table, line by line, in the order of the file."""

    def __init__(self, header: str, above: Sequence[str], ranks: int, label_words: int) -> None:
        """Reads the column names.

        Args:
            header: line of column names.
            above: lines above ``header``. One of them may name the placements of the results.
            ranks: number of ranks. Before 2.13, the allowed error depends on it.
            label_words: number of words in the label that a launcher puts before each line.

        Raises:
            ValueError: the columns cannot be used.
        """
        match = HEADER.search(header)
        cells = list(_WORD.finditer(header, match.start(1))) if match else []
        self.columns = tuple(cell[0] for cell in cells)
        self._ranks = ranks
        self._label = re.compile(rf"\s*(?:\S+\s?){{{label_words}}}") if label_words else None
        first = next(
            (index for index, name in enumerate(self.columns) if name in _NUMBERS),
            len(self.columns),
        )
        self._described = self.columns[:first]
        results = list(self.columns[first:])
        while results and results[-1] in _NAMES_BEHIND:
            results.pop()
        half = len(results) // 2
        starts = [index for index, name in enumerate(results) if name == results[0]]
        if half and results[:half] == results[half : 2 * half]:
            self._names, begins = results[:half], [0, half]
        elif len(starts) == 2:
            self._names, begins = results[: starts[1]], starts
        else:
            self._names, begins = results, [0]
        self._time = self._index_of_time()
        self._wrong = next(
            (index for index, name in enumerate(self._names) if name in _NAMES_OF_WRONG), None
        )
        self._places = _places(above, len(begins))
        #: For each result, the number of characters from the end of the description to the end
        #: of the result's first cell.
        self._distance = [
            cells[first + begin].end() - cells[first - 1].end() for begin in begins if first
        ]
        #: nccl-tests v1 has columns ``bytes`` and ``N``, and times in milliseconds.
        self._unit_us = 1e3 if "bytes" in self._described else 1.0
        self._pending: _Pending | None = None
        #: Number of interrupted rows that could not be completed.
        self.broken = 0

    def rows(self, line: str) -> list[NcclTestsRow]:
        """Returns the results in a line; empty if the line has none."""
        for match in _DESCRIPTION.finditer(line):
            description, position, interrupted = self._description(match, line)
            cells = ([], 0, True) if interrupted else self._cells(line, position)
            if len(cells[0]) < len(self._names) and not _TYPE.fullmatch(description.dtype):
                continue  # other output that looks like a description
            self.end()
            return self._results(description, cells, position)
        return self._continued(line) if self._pending else []

    def end(self) -> None:
        """Stops looking for missing results of a row."""
        self.broken += self._pending is not None and self._pending.broken
        self._pending = None

    def _index_of_time(self) -> int:
        for name in _NAMES_OF_TIME:
            if name in self._names:
                return self._names.index(name)
        if "cputime" in self._names:
            raise ValueError("its times are CPU times (-C); measure without -C")
        raise ValueError("it has no column of times")

    def _description(self, match: re.Match[str], line: str) -> tuple[_Description, int, bool]:
        """Returns the description, the position of its end, and True if other output follows."""
        position, redop, root, interrupted = match.end(), "", -1, False
        for name in self._described[3:]:
            word = _WORD.match(line, _skip(line, position))
            if word is None or interrupted:
                break
            cell = None
            # The cell of the reduction may be empty if the test reduces nothing.
            if name in ("redop", "op") and _is_redop(word[0]):
                redop, cell = word[0], word
            elif name == "root" and (cell := _ROOT.match(word[0])):
                root, interrupted = int(cell[0]), cell.end() < len(word[0])
            elif name not in ("redop", "op", "root"):
                cell = word
            if cell is not None:
                position = word.start() + len(cell[0])
        word = _WORD.match(line, _skip(line, position))
        if word is not None and not interrupted and not self._is_cell(0, word[0]):
            interrupted = True
        described = _Description(
            *(int(match[1]), int(match[2]), match[3], "" if redop == "none" else redop, root)
        )
        return described, position, interrupted

    def _results(
        self, described: _Description, read: tuple[list[str], int, bool], last_end: int
    ) -> list[NcclTestsRow]:
        cells, first_end, broken_off = read
        size, places = len(self._names), self._places
        whole = len(cells) // size
        if whole == 1 and len(places) > 1 and not broken_off:
            distance = first_end - last_end
            to_each = [abs(distance - usual) for usual in self._distance]
            places = places[to_each.index(min(to_each)) :]
        missing = list(places[whole:])
        if broken_off and missing and len(cells) % size:
            self.broken += 1  # a cell may lack digits
        elif missing:
            self._pending = _Pending(described, missing, cells[whole * size :], broken_off)
        return self._measured(described, places, cells)

    def _cells(self, line: str, position: int) -> tuple[list[str], int, bool]:
        """Returns the results' cells, the first cell's end, and True if other output follows."""
        cells: list[str] = []
        first_end, most = 0, len(self._names) * len(self._places)
        while len(cells) < most:
            word = _WORD.match(line, _skip(line, position))
            if word is None:
                return cells, first_end, False
            cell = _CELL.match(word[0])
            if cell is None and self._is_cell(len(cells), word[0]):
                cell = _WORD.match(word[0])
            if cell is None:
                return cells, first_end, not _is_time_of_day(word[0])
            position = word.start() + cell.end()
            whole = cell.end() == len(word[0])
            # If other output directly follows a cell, the cell may lack digits. Only the last cell
            # of a result is accepted.
            if not whole and (len(cells) + 1) % len(self._names):
                return cells, first_end, not _is_time_of_day(word[0])
            cells.append(cell[0])
            first_end = first_end or word.end()
            if not whole:
                return cells, first_end, True
        return cells, first_end, False

    def _continued(self, line: str) -> list[NcclTestsRow]:
        """Returns missing results of the pending row, if the line begins with such results."""
        pending = self._pending
        assert pending is not None
        label = self._label.match(line) if self._label else None
        start = _skip(line, label.end() if label else 0)
        if line[start : start + 1] == "#":
            self.end()
            return []
        size = len(self._names)
        more, _, broken_off = self._cells(line, start)
        cells = pending.cells + more
        complete = len(cells) == size * len(pending.places)
        if not more or len(cells) % size or not (complete or broken_off):
            return []
        rows = self._measured(pending.described, pending.places, cells)
        if not all(agrees_with_algbw(row) for row in rows):
            return []
        missing = pending.places[len(cells) // size :]
        self._pending = _Pending(pending.described, missing, [], True) if missing else None
        return rows

    def _is_cell(self, number_of_cell: int, word: str) -> bool:
        name = self._names[number_of_cell % len(self._names)]
        numbers = name in (*_NUMBERS, *_NAMES_OF_WRONG) or name.startswith("i_")
        return not numbers or _CELL.match(word) is not None

    def _measured(
        self, described: _Description, places: Sequence[str], cells: Sequence[str]
    ) -> list[NcclTestsRow]:
        size = len(self._names)
        made = []
        for placement, begin in zip(places, range(0, len(cells) - size + 1, size), strict=False):
            by_name = dict(zip(self._names, cells[begin : begin + size], strict=True))
            shown = figure(cells[begin + self._time])
            time_us = shown.value * self._unit_us if shown else math.nan
            if shown is None or not (0 < time_us < math.inf and described.size_bytes > 0):
                continue
            made.append(
                NcclTestsRow(
                    size_bytes=described.size_bytes,
                    count=described.count,
                    dtype=described.dtype,
                    redop=described.redop,
                    root=described.root,
                    placement=placement,
                    time_us=time_us,
                    wrong=self._wrong_elements(described.dtype, by_name),
                    half_digit_us=shown.half_digit * self._unit_us,
                    algbw=_shown(by_name, "algbw"),
                    busbw=_shown(by_name, "busbw"),
                    spread=_spread(by_name),
                )
            )
        return made

    def _wrong_elements(self, dtype: str, cells: dict[str, str]) -> int | None:
        """Returns the number of wrong elements; None if not known.

        If the table shows only the largest error, the number is 1 for an error that is too large.
        """
        if self._wrong is None:
            return None
        name = self._names[self._wrong]
        cell = cells[name]
        value = number(cell.removesuffix("*"))
        if math.isnan(value):
            return None
        if name not in _NAMES_OF_DELTA:
            return int(value) if math.isfinite(value) else 1
        allowed = _DELTAS.get(dtype, _LEAST_DELTA) * max(1, self._ranks - 1)
        return int(cell.endswith("*") or value > allowed)


def agrees_with_algbw(row: NcclTestsRow) -> bool:
    """False if algbw is far from size / time: the row may lack digits or cells."""
    if row.algbw is None or not row.algbw.value > 10 * row.algbw.half_digit:
        return True
    shown = row.size_bytes / (row.time_us * 1e3)
    # In nccl-tests before 2.9, algbw of some operations has the factor (n - 1) / n for n ranks.
    # This factor is at least 1/2.
    return shown / 2.5 < row.algbw.value < 1.25 * shown


def _places(above: Sequence[str], results: int) -> list[str]:
    """Returns the placement of each result, in the order of the columns.

    Raises:
        ValueError: the only result's placement is not stated.
    """
    for line in reversed(above):
        if named := _PLACE.findall(line):
            return [name.replace("-", "_") for name in named[:results]]
    if results == 1:
        raise ValueError(
            "its table does not say whether results are in place or out of place; keep the line "
            "above the column names"
        )
    return ["out_of_place", "in_place"]


def _shown(cells: dict[str, str], name: str) -> TestedFigure | None:
    return figure(cells[name]) if name in cells else None


def _spread(cells: dict[str, str]) -> TestedSpread | None:
    least, p99, most, cv = (number(cells.get(f"i_{name}")) for name in ("min", "p99", "max", "cv%"))
    if any(math.isnan(value) for value in (least, p99, most, cv)):
        return None
    return TestedSpread(least, p99, most, cv / 100)


def _skip(line: str, position: int) -> int:
    while position < len(line) and line[position].isspace():
        position += 1
    return position


def _is_redop(word: str) -> bool:
    return _REDOP.fullmatch(word) is not None and word not in ("nan", "inf")


def _is_time_of_day(word: str) -> bool:
    return re.match(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", word) is not None
