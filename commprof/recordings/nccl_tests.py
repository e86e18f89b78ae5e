"""Results of nccl-tests and rccl-tests: their text, and the JSON of newer versions.

The text has a line of column names, which differ between versions and operations; rows are read
according to it. Older versions do not name the operation: it is then derived from the file's name,
or the file is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commprof.errors import UsageError
from commprof.files import open_regular, read_bytes
from commprof.invocation import quoted
from commprof.text import printable

_LARGEST_BYTES = 1 << 28
#: Number of cells of a result: time, algbw, busbw and errors.
_LEAST_CELLS = 4
_HEAD_BYTES = 1 << 16
_HEADER = re.compile(r"^.*?#\s+(size\s+count\s+type\b.*)$", re.MULTILINE)
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+ on\s+(\S+)\s+device")
#: Tag that mpirun puts before each line, with any label before it.
_TAG = re.compile(r"^.{0,200}?\[(?:\S*@)?\d+,\d+\]<std\w+>:")
_CELL = re.compile(r"\S+")
#: A program of nccl-tests that measures no collective of NCCL's.
_NO_COLLECTIVE = "hypercube"
_OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}


@dataclass(frozen=True)
class NcclTestsRow:
    """One result of nccl-tests; a line of the table holds one out of place and one in place."""

    size_bytes: int
    count: int
    dtype: str
    #: Reduction; empty if the operation reduces nothing.
    redop: str
    root: int
    placement: str
    #: Mean time of an iteration.
    time_us: float
    #: Number of wrong elements; None if results were not checked.
    wrong: int | None
    #: Times of single iterations, if the file has them.
    samples_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class NcclTestsLog:
    """The result of one run of one test."""

    op: str
    ranks: int
    hosts: int
    rows: tuple[NcclTestsRow, ...]


def is_nccl_tests(path: Path) -> bool:
    """True if a file is a result of nccl-tests according to its first bytes."""
    try:
        with open_regular(path) as opened:
            head = opened.read(_HEAD_BYTES)
    except OSError:
        return False
    if head.lstrip().startswith(b"{"):
        return b'"args"' in head and b'"env"' in head and b'"start_time"' in head
    return _HEADER.search(head.decode(errors="replace")) is not None


def read_nccl_tests(path: Path) -> tuple[NcclTestsLog, ...]:
    """Reads a file of results; returns one log per operation and set of ranks.

    Raises:
        UsageError: the file cannot be read, or lacks the operation or the ranks.
    """
    try:
        text = read_bytes(path, _LARGEST_BYTES).decode(errors="replace")
        logs = (_of_json(path, text),) if text.lstrip().startswith("{") else _of_text(path, text)
    except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        what = printable(str(error).splitlines()[0] if str(error) else "damaged")
        raise UsageError(f"{quoted(path)} is not a usable result of nccl-tests: {what}") from None
    if not any(log.rows for log in logs):
        raise UsageError(f"{quoted(path)} has no rows of nccl-tests with a size and a time")
    return logs


@dataclass(frozen=True)
class _Section:
    """A table of a file, with the program and devices named above it."""

    columns: tuple[str, ...]
    #: The program that wrote the table; empty if not named.
    program: str
    #: Host and rank of each device.
    devices: frozenset[tuple[str, int]]
    rows: tuple[NcclTestsRow, ...]


def _of_text(path: Path, text: str) -> tuple[NcclTestsLog, ...]:
    """Reads the text output of one or several runs."""
    lines = [_TAG.sub("", line) for line in text.splitlines()]
    headers = [at for at, line in enumerate(lines) if _HEADER.search(line)]
    if not headers:
        raise ValueError("it has no line of column names")
    # Launchers put a label, or the time, before every line.
    words = len(lines[headers[0]].partition("#")[0].split())
    label = re.compile(rf"\s*(?:\S+\s?){{{words}}}") if words else re.compile("")
    lines = [label.sub("", line, count=1) for line in lines]
    sections = _sections(lines, headers)
    unnamed = {each.columns for each in sections if not each.program}
    if len(unnamed) > 1 or (unnamed and any(each.program for each in sections)):
        raise ValueError(
            f"it holds {len(sections)} results and does not name the operation of each; put each "
            "result into its own file"
        )
    everybody = frozenset(_devices(lines))
    rows: dict[tuple[str, frozenset[tuple[str, int]]], list[NcclTestsRow]] = {}
    for each in sections:
        op = _operation(each.program or _named(text), path, each.columns)
        rows.setdefault((op, each.devices or everybody), []).extend(each.rows)
    if not all(devices for _, devices in rows):
        raise ValueError(
            "it does not say which ranks took part; keep the lines `# Rank ...` of the output"
        )
    if len({len({host for host, _ in devices}) for _, devices in rows}) > 1:
        raise ValueError(
            "its results are from different numbers of hosts; put each result into its own file"
        )
    return tuple(
        NcclTestsLog(
            op=op,
            ranks=len({rank for _, rank in devices}),
            hosts=len({host for host, _ in devices}),
            rows=tuple(found),
        )
        for (op, devices), found in rows.items()
    )


def _sections(lines: Sequence[str], headers: Sequence[int]) -> list[_Section]:
    found = []
    first = 0
    for header, behind in zip(headers, [*headers[1:], len(lines)], strict=True):
        table = _Table(lines[header])
        last = max((i for i in range(first, header) if _is_row(lines[i])), default=first - 1)
        about = lines[last + 1 : header]
        rows = tuple(row for line in lines[header:behind] for row in table.rows(line))
        found.append(
            _Section(table.columns, _named("\n".join(about)), frozenset(_devices(about)), rows)
        )
        first = header
    return found


def _named(text: str) -> str:
    """Returns the last program of nccl-tests that the text names; empty if there is none."""
    named = re.findall(r"Collective test starting: (\w+)", text) or re.findall(r"\w+_perf", text)
    return named[-1] if named else ""


def _devices(lines: Sequence[str]) -> set[tuple[str, int]]:
    """Returns host and rank of each device that took part."""
    found = [match for line in lines if (match := _RANK.search(line))]
    return {(match[3], int(match[1])) for match in found if match[2] in (None, "0")}


def _is_row(line: str) -> bool:
    cells = line.split()
    return len(cells) > 4 and cells[0].isdecimal() and cells[1].isdecimal()


class _Table:
    """Reader of a table's rows, according to the line of column names."""

    def __init__(self, header: str) -> None:
        """Reads the column names; ValueError if the columns cannot be used."""
        found = _HEADER.search(header)
        cells = list(_CELL.finditer(header, found.start(1))) if found else []
        self.columns = tuple(cell[0] for cell in cells)
        if "cputime" in self.columns:
            raise ValueError("its times are CPU times (-C); measure without -C")
        times = [at for at, name in enumerate(self.columns) if name == "time"]
        if not times:
            raise ValueError("it has no column of times")
        self._named = self.columns[3 : times[0]]
        #: Number of cells of a result: time, two bandwidths, errors, and those of newer versions.
        self._length = times[1] - times[0] if len(times) > 1 else _LEAST_CELLS
        #: Distance in characters from the cell before the first result to each result's time.
        self._distance = [cells[at].end() - cells[times[0] - 1].end() for at in times]

    def rows(self, line: str) -> list[NcclTestsRow]:
        """Returns a line's results, out of place and in place; empty if it is not a row."""
        cells = list(_CELL.finditer(line))
        words = [cell[0] for cell in cells]
        if len(words) < 3 + _LEAST_CELLS or not (words[0].isdecimal() and words[1].isdecimal()):
            return []
        at, redop, root = 3, "none", -1
        # Tests that reduce nothing may leave the cell empty.
        if {"redop", "op"} & set(self._named) and math.isnan(_float(words[at])):
            redop, at = words[at], at + 1
        if "root" in self._named and words[at].removeprefix("-").isdecimal():
            root, at = int(words[at]), at + 1
        results = [at + self._length * number for number in range(2)]
        whole = [each for each in results if each + _LEAST_CELLS <= len(words)]
        places = ["out_of_place", "in_place"]
        if len(whole) == 1 and len(self._distance) > 1:
            distance = cells[at].end() - cells[at - 1].end()
            to_each = [abs(distance - one) for one in self._distance]
            places = places[to_each.index(min(to_each)) :]
        described = words[0], words[1], words[2], "" if redop == "none" else redop, root
        return [
            row
            for placement, each in zip(places, whole, strict=False)
            if (row := _measured(*described, placement, words[each : each + _LEAST_CELLS]))
        ]


def _measured(
    size: str, count: str, dtype: str, redop: str, root: int, placement: str, cells: Sequence[str]
) -> NcclTestsRow | None:
    """Makes a row of a result; None if its size or time is zero."""
    time_us, wrong = _float(cells[0]), _float(cells[3])
    if not (time_us > 0 and int(size) > 0):
        return None
    return NcclTestsRow(
        size_bytes=int(size),
        count=int(count),
        dtype=dtype,
        redop=redop,
        root=root,
        placement=placement,
        time_us=time_us,
        wrong=None if math.isnan(wrong) else int(wrong),
    )


def _float(cell: str) -> float:
    """Parses a number; NaN if the cell is not a number."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _operation(program: str, path: Path, columns: Sequence[str]) -> str:
    """Returns the operation, from the program's name or the file's name.

    Raises:
        ValueError: neither names an operation.
    """
    for text in (program, path.stem):
        if _NO_COLLECTIVE in text.lower():
            raise ValueError(f"{text} does not measure a collective of NCCL")
        plain = text.lower().replace("-", "_").replace("_", "")
        for name, op in _OPS.items():
            if name.replace("_", "") in plain:
                return op
    if "redop" in columns and "root" not in columns:
        raise ValueError(
            "its operation may be all_reduce or reduce_scatter; rename the file so that its name "
            "has the right one"
        )
    raise ValueError("it does not name its operation; put the operation into the file's name")


def _of_json(path: Path, text: str) -> NcclTestsLog:
    value = json.loads(text)
    config, args, results = (value.get(key) for key in ("config", "args", "results"))
    if not (isinstance(config, dict) and isinstance(args, list) and isinstance(results, list)):
        raise ValueError("it lacks config, args or results")
    devices = [one for one in config.get("devices", []) if isinstance(one, dict)]
    # The file lists only the first device of each process.
    each = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    rows = [row for one in results if isinstance(one, dict) for row in _json_rows(one)]
    return NcclTestsLog(
        op=_operation(str(args[0]).rsplit("/", 1)[-1] if args else "", path, ()),
        ranks=max(1, len(devices)) * each,
        hosts=max(1, len({str(one.get("hostname")) for one in devices})),
        rows=tuple(rows),
    )


def _json_rows(one: Mapping[str, Any]) -> list[NcclTestsRow]:
    result = []
    for placement in ("out_of_place", "in_place"):
        measured = one.get(placement)
        if not isinstance(measured, dict) or not measured.get("time") or not one.get("size"):
            continue
        single = one.get(f"{placement}_per_iter")
        samples = single.get("times_us", ()) if isinstance(single, dict) else ()
        redop, wrong = str(one.get("redop", "none")), _float(str(measured.get("nwrong")))
        result.append(
            NcclTestsRow(
                size_bytes=int(one["size"]),
                count=int(one.get("count", 0)),
                dtype=str(one.get("type", "")),
                redop="" if redop == "none" else redop,
                root=int(_float(str(one.get("root", -1)))),
                placement=placement,
                time_us=float(measured["time"]),
                wrong=None if math.isnan(wrong) else int(wrong),
                samples_us=tuple(float(sample) for sample in samples),
            )
        )
    return [row for row in result if row.time_us > 0]
