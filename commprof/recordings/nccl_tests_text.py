"""Reads the text that nccl-tests and rccl-tests print.

The text is read line by line, because it may be long: lines of NCCL (``NCCL_DEBUG``) and lists of
thousands of ranks may stand before the table. Tags of mpirun, labels of launchers, colours and
carriage returns are ignored. A text may hold several tables.
"""

from __future__ import annotations

import io
import json
import math
import re
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commprof.files import open_regular
from commprof.recordings.nccl_tests_ranks import settled_ranks
from commprof.recordings.nccl_tests_rows import (
    NcclTestsLog,
    NcclTestsRow,
    about_operation,
    about_roots,
    in_rounds,
    operation,
    operation_of_rows,
    without_contradictions,
)
from commprof.recordings.nccl_tests_table import HEADER, Table
from commprof.text import counted, rank_list

#: First bytes of a container's log in Docker's format. Each line of the log is a JSON object that
#: holds one printed line.
CONTAINER_LOG = b'{"log":"'
#: Longest piece of a line that is read at a time, in characters.
_LONGEST_LINE = 1 << 16
#: Number of bytes at a file's beginning in which the column names are searched.
_MOST_SEARCHED = 1 << 30
_PIECE = 1 << 20
#: Byte order marks of the text that PowerShell writes.
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LOGGED = CONTAINER_LOG.decode()
_MARK = re.compile(
    rb"(?:size[ \t]+count|bytes[ \t]+N)[ \t]+type\b[^\r\n]{0,400}?time\b[^\r\n]{0,200}?algbw"
)
#: Control sequences of terminals, and tags of mpirun. A tag may also stand within a row.
_NOT_PRINTED = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\[(?:[^\[\]\s]*@)?\d+,\d+\]<std\w+>: ?")
_RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+(\d+)\s+)?on\s+(\S+)\s+device\b"
)
_STARTING = re.compile(r"Collective test starting: *(\w+)")
_CONCLUDED = re.compile(r"Collective test concluded: *(\w+)")
_PROGRAM = re.compile(r"\w+_perf")
#: Two results of the same test are taken to be from different machines if the times differ by this
#: factor or more.
_OTHER_MACHINES = 1.4
#: Number of lines above the column names that may name the placements (in place or out of place).
_ABOVE = 4


@dataclass(frozen=True)
class _Device:
    rank: int
    host: str
    #: Index of the communicator (``NCCL_TESTS_SPLIT``); 0 in versions without splits.
    group: int


@dataclass
class _About:
    starting: str = ""
    named: str = ""
    devices: list[_Device] = field(default_factory=list)


@dataclass
class _Section:
    table: Table
    about: _About
    concluded: str = ""
    rows: list[NcclTestsRow] = field(default_factory=list)

    @property
    def program(self) -> str:
        return self.about.starting or self.about.named or self.concluded


@dataclass
class _Content:
    sections: list[_Section] = field(default_factory=list)
    devices: list[_Device] = field(default_factory=list)
    program: str = ""


def has_table(path: Path) -> bool:
    """True if a text file has a line with nccl-tests' column names.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(path) as opened:
        tail = b""
        while opened.tell() < _MOST_SEARCHED and (piece := opened.read(_PIECE)):
            if not tail and piece.startswith(_UTF_16):
                return any(HEADER.search(line) for line in _lines(path) if "type" in line)
            both = tail + piece
            if b"algbw" in both and _MARK.search(both):
                return True
            tail = piece[-1024:]
    return False


def read_text(path: Path) -> tuple[NcclTestsLog, ...]:
    """Reads the text output of one or several runs.

    Raises:
        OSError: the file cannot be read.
        ValueError: the text lacks the operation, the ranks or a usable table, or its results are
            from different machines.
    """
    content = _content(_lines(path))
    sections = content.sections
    if not sections:
        raise ValueError("it has no line of column names")
    logs = list(_logs(path.stem, content))
    if len({log.hosts for log in logs if log.rows}) > 1:
        raise ValueError(
            "its results are from different numbers of hosts; put each result into its own file"
        )
    for position, log in enumerate(logs):
        for other in logs[:position]:
            _refuse_other_machines(other, log)
    return tuple(logs)


def _refuse_other_machines(first: NcclTestsLog, second: NcclTestsLog) -> None:
    """Refuses two results of the same test that seem to be from different machines.

    A web page, for example, may hold results of several clusters. No single cost curve fits
    several clusters.

    Raises:
        ValueError: the times differ by the factor ``_OTHER_MACHINES`` or more, in the median over
            all sizes.
    """
    if (first.op, first.ranks, first.hosts) != (second.op, second.ranks, second.hosts):
        return
    times = [_times_us(log) for log in (first, second)]
    ratios = [times[1][key] / times[0][key] for key in times[0].keys() & times[1].keys()]
    ratio = statistics.median(ratios) if ratios else 1.0
    if not 1 / _OTHER_MACHINES < ratio < _OTHER_MACHINES:
        raise ValueError(
            f"it holds results of {first.op} on {first.ranks} ranks from different sets of hosts: "
            f"the times differ by a factor of {max(ratio, 1 / ratio):.1f}; put each result into "
            "its own file"
        )


def _times_us(log: NcclTestsLog) -> dict[tuple[int, str, str], float]:
    """Returns the shortest time by size, placement and type; leaves out times of zero."""
    times: dict[tuple[int, str, str], float] = {}
    for row in log.rows:
        if row.time_us > 0:
            key = row.size_bytes, row.placement, row.dtype
            times[key] = min(row.time_us, times.get(key, math.inf))
    return times


def _logs(stem: str, content: _Content) -> Iterator[NcclTestsLog]:
    parts: dict[tuple[str, frozenset[_Device]], list[_Section]] = {}
    derived = set[str]()
    for section in content.sections:
        op = _operation(section, content, stem)
        if not op:
            op = operation_of_rows(section.rows)
            derived.add(op)
        devices = frozenset(section.about.devices or content.devices)
        parts.setdefault((op, devices), []).append(section)
    for (op, devices), sections in parts.items():
        rows: list[NcclTestsRow] = []
        for section in sections:
            rows += in_rounds(section.rows, max((row.round for row in rows), default=-1) + 1)
        remarks = [*about_operation(sections[0].program or content.program), *about_roots(rows)]
        if op in derived:
            remarks.append(
                f"it does not name its operation; redop, root and busbw / algbw are those of {op}"
            )
        runs = sum(bool(section.rows) for section in sections)
        if runs > 1:
            remarks.append(
                f"it holds {runs} runs of the same test, which are taken as rounds of one run"
            )
        if broken := sum(section.table.broken for section in sections):
            are = "is" if broken == 1 else "are"
            remarks.append(f"{counted(broken, 'row')} broken by other output {are} left out")
        ranks, hosts, of_ranks = _took_part(op, devices, rows)
        rows, of_rows = without_contradictions(rows, ranks)
        yield NcclTestsLog(op, ranks, hosts, tuple(rows), (*remarks, *of_rows, *of_ranks))


def _operation(section: _Section, content: _Content, stem: str) -> str:
    """Returns the operation in the name of the program or of the file; "" if only rows show it.

    If the lines around the table do not name a program, other names count only if all tables of
    the file may be of the same operation.

    Raises:
        ValueError: neither a name nor the rows show the operation.
    """
    unnamed = {other.table.columns for other in content.sections if not other.program}
    is_of_each = len(unnamed) > 1 or any(other.program for other in content.sections)
    if not section.program and is_of_each:
        if not operation_of_rows(section.rows):
            raise ValueError(
                f"it holds {len(content.sections)} results and does not name the operation of "
                "each; put each result into its own file"
            )
        return ""
    try:
        return operation(section.program or content.program, stem, section.table.columns)
    except ValueError:
        if section.program or not operation_of_rows(section.rows):
            raise
        return ""


def _took_part(
    op: str, devices: frozenset[_Device], rows: Sequence[NcclTestsRow]
) -> tuple[int, int | None, list[str]]:
    """Returns the number of ranks, the number of hosts (None if not known), and remarks."""
    listed = {device.rank for device in devices}
    lost = sorted(set(range(max(listed, default=-1) + 1)) - listed)
    groups = {device.group for device in devices}
    first = min(devices, key=lambda device: (device.rank, device.group), default=None)
    members = [device for device in devices if first and device.group == first.group]
    member_ranks = {device.rank for device in members}
    stated = [len(member_ranks)] if member_ranks else []
    if lost and len(groups) == 1:
        stated = [len(listed) + len(lost), len(listed)]
    ranks, remarks = settled_ranks(op, stated, "lines `# Rank`", rows)
    if lost and len(groups) == 1 and ranks == stated[0]:
        remarks.append(
            f"the lines `# Rank` of {counted(len(lost), 'rank')} ({rank_list(lost)}) are missing; "
            f"{ranks} ranks took part, as the highest rank shows"
        )
    if len(groups) > 1:
        remarks.append(
            f"{len(groups)} groups were measured at the same time; the numbers of ranks and hosts "
            "are those of the first group"
        )
    hosts = {device.host for device in members}
    by_rank: dict[int, set[str]] = {}
    for device in members:
        by_rank.setdefault(device.rank, set()).add(device.host)
    alone = max(map(len, by_rank.values()), default=1)
    if alone > 1:
        remarks.append(
            f"{alone} processes number their ranks from 0, so each process measured alone "
            "(build nccl-tests with MPI=1 to measure all ranks together)"
        )
        return ranks, len({min(names) for names in by_rank.values()}), remarks
    if len(hosts) < 2 and ranks > len(member_ranks):
        return ranks, None, remarks
    return ranks, len(hosts) or None, remarks


def _content(lines: Iterator[str]) -> _Content:
    content, about = _Content(), _About()
    section: _Section | None = None
    above: deque[str] = deque(maxlen=_ABOVE)
    for line in lines:
        if "type" in line and (match := HEADER.search(line)):
            if section:
                section.table.end()
            label = line[: match.start()].partition("#")[0]
            ranks = len({device.rank for device in about.devices or content.devices})
            section = _Section(Table(line, above, ranks, len(label.split())), about)
            content.sections.append(section)
        elif section and (rows := section.table.rows(line)):
            section.rows += rows
            about = _About()
        elif "Rank" in line and (match := _RANK.search(line)):
            device = _Device(int(match[1]), match[4], int(match[2] or 0))
            about.devices.append(device)
            content.devices.append(device)
        elif "_perf" in line and (named := _PROGRAM.findall(line)):
            content.program = named[-1]
            if (match := _CONCLUDED.search(line)) and section:
                section.concluded = match[1]
            elif match := _STARTING.search(line):
                about.starting = match[1]
            else:
                about.named = named[-1]
        above.append(line)
    if section:
        section.table.end()
    return content


def _lines(path: Path) -> Iterator[str]:
    """Yields the lines without mpirun's tags, control sequences and NUL characters.

    Network file systems may leave NUL characters in a file.
    """
    with open_regular(path) as opened:
        mark = opened.read(2)
        opened.seek(0)
        encoding = "utf-16" if mark in _UTF_16 else "utf-8"
        text = io.TextIOWrapper(opened, encoding, errors="replace", newline=None)
        while raw := text.readline(_LONGEST_LINE):
            line = raw.rstrip("\n").replace("\0", "")
            yield _NOT_PRINTED.sub("", _of_container(line) if raw.startswith(_LOGGED) else line)


def _of_container(line: str) -> str:
    try:
        return str(json.loads(line)["log"]).rstrip("\r\n")
    except (ValueError, TypeError, KeyError):
        return line
