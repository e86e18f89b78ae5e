"""Results of nccl-tests and rccl-tests: their text, and the JSON of newer versions.

The text has a line of column names, which differ between versions and operations; rows are read by
them. Older versions do not name the operation: it is then taken from the file's name or from the
columns, and refused where these fit several operations.
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
_HEAD_BYTES = 1 << 16
_HEADER = re.compile(r"^.*?#\s+(size\s+count\s+type\b.*)$", re.MULTILINE)
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+ on\s+(\S+)\s+device")
_TAG = re.compile(r"^\[\d+,\d+\]<std\w+>:\s?")
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
    """One line of the table, in place or out of place."""

    size_bytes: int
    count: int
    dtype: str
    #: Empty where nothing is reduced.
    redop: str
    root: int
    placement: str
    #: Mean of the iterations.
    time_us: float
    #: None where it was not checked.
    wrong: int | None
    #: Single iterations, where the file has them.
    samples_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class NcclTestsLog:
    """One run of one of the tests."""

    op: str
    ranks: int
    hosts: int
    rows: tuple[NcclTestsRow, ...]


def is_nccl_tests(path: Path) -> bool:
    """Whether a file looks like a result of nccl-tests."""
    try:
        with open_regular(path) as opened:
            head = opened.read(_HEAD_BYTES)
    except OSError:
        return False
    if head.lstrip().startswith(b"{"):
        return b'"args"' in head and b'"env"' in head and b'"start_time"' in head
    return _HEADER.search(head.decode(errors="replace")) is not None


def read_nccl_tests(path: Path) -> NcclTestsLog:
    """Reads a result.

    Raises:
        UsageError: it cannot be read, or does not say what was measured on how many ranks.
    """
    try:
        text = read_bytes(path, _LARGEST_BYTES).decode(errors="replace")
        log = _of_json(path, text) if text.lstrip().startswith("{") else _of_text(path, text)
    except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        what = printable(str(error).splitlines()[0] if str(error) else "damaged")
        raise UsageError(f"{quoted(path)} is no usable result of nccl-tests: {what}") from None
    if not log.rows:
        raise UsageError(f"{quoted(path)} has no rows of nccl-tests with a size and a time")
    return log


def _of_text(path: Path, text: str) -> NcclTestsLog:
    """Of one run, or of several of the same test on the same ranks, one after the other."""
    lines = [_TAG.sub("", line) for line in text.splitlines()]
    headers = [at for at, line in enumerate(lines) if _HEADER.search(line)]
    if not headers:
        raise ValueError("it has no line of column names")
    # Launchers put a label, or the time, before every line.
    words = len(lines[headers[0]].partition("#")[0].split())
    if words:
        lines = [(line.split(maxsplit=words) + [""] * words)[words] for line in lines]
    first = 0
    found: list[tuple[tuple[str, ...], str, set[tuple[str, int]]]] = []
    rows: list[NcclTestsRow] = []
    for at, header in enumerate(headers):
        behind = headers[at + 1] if at + 1 < len(headers) else len(lines)
        columns = tuple(_columns(lines[header]))
        rows += [row for line in lines[header:behind] for row in _rows(line.split(), columns)]
        last = max((i for i in range(first, header) if _is_row(lines[i])), default=first - 1)
        about = lines[last + 1 : header]
        found.append((columns, _named("\n".join(about)), _devices(about)))
        first = header
    named = {each[:2] for each in found}
    devices = {frozenset(each[2]) for each in found if each[2]} or {frozenset(_devices(lines))}
    if len(named) > 1 or len(devices) > 1:
        raise ValueError(f"it holds {len(found)} results; give each a file of its own")
    (columns, program), (ranks,) = named.pop(), devices
    if not ranks:
        raise ValueError("it does not say which ranks took part")
    return NcclTestsLog(
        op=_operation(program or _named(text), path, columns),
        ranks=len({rank for _, rank in ranks}),
        hosts=len({host for host, _ in ranks}),
        rows=tuple(rows),
    )


def _columns(line: str) -> list[str]:
    header = _HEADER.search(line)
    columns = header[1].split() if header else []
    if "cputime" in columns:
        raise ValueError("its times are of the CPU (-C); measure without -C")
    if "time" not in columns:
        raise ValueError("its columns have no time")
    return columns


def _named(text: str) -> str:
    """The program that ran, as the text says; else empty."""
    named = re.search(r"Collective test starting: (\w+)", text) or re.search(r"(\w+_perf)", text)
    return named[1] if named else ""


def _devices(lines: Sequence[str]) -> set[tuple[str, int]]:
    """Host and rank of each device that took part."""
    found = [match for line in lines if (match := _RANK.search(line))]
    return {(match[3], int(match[1])) for match in found if match[2] in (None, "0")}


def _is_row(line: str) -> bool:
    cells = line.split()
    return len(cells) > 4 and cells[0].isdecimal() and cells[1].isdecimal()


def _rows(cells: Sequence[str], columns: Sequence[str]) -> list[NcclTestsRow]:
    """Those of a line; none of a line that is no row."""
    if len(cells) < len(columns) or not (cells[0].isdecimal() and cells[1].isdecimal()):
        return []
    named = dict(zip(columns[: columns.index("time")], cells, strict=False))
    places = [at for at, name in enumerate(columns) if name == "time"]
    result = []
    for placement, at in zip(("out_of_place", "in_place"), places, strict=False):
        time_us, wrong = _float(cells[at]), _float(cells[at + 3])
        if time_us > 0 and int(cells[0]) > 0:
            redop = named.get("redop", "none")
            result.append(
                NcclTestsRow(
                    size_bytes=int(cells[0]),
                    count=int(cells[1]),
                    dtype=cells[2],
                    redop="" if redop == "none" else redop,
                    root=int(_float(named.get("root", "-1"))),
                    placement=placement,
                    time_us=time_us,
                    wrong=None if math.isnan(wrong) else int(wrong),
                )
            )
    return result


def _float(cell: str) -> float:
    """NaN for what is no number."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _operation(program: str, path: Path, columns: Sequence[str]) -> str:
    """As the program is called; else as the file is; else as the columns tell."""
    for text in (program, path.stem):
        plain = text.lower().replace("-", "_").replace("_", "")
        for name, op in _OPS.items():
            if name.replace("_", "") in plain:
                return op
    if "redop" in columns and "root" not in columns:
        raise ValueError("it may be of all_reduce or reduce_scatter; put that into the file's name")
    raise ValueError("it does not name its operation; put that into the file's name")


def _of_json(path: Path, text: str) -> NcclTestsLog:
    value = json.loads(text)
    config, args, results = (value.get(key) for key in ("config", "args", "results"))
    if not (isinstance(config, dict) and isinstance(args, list) and isinstance(results, list)):
        raise ValueError("it lacks config, args or results")
    devices = [one for one in config.get("devices", []) if isinstance(one, dict)]
    # Of each process the file has the first device alone.
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
