"""Reads and encodes the summaries of hosts.

In always-on mode, the monitor of each host writes a file into the directory of the job's traces.
The file holds the sum of the summaries of the host's ranks (:mod:`commprof.trace.summary`), and
some figures of at most ``MOST_LISTED`` single ranks. The file has at most ``MOST_BYTES``: the sum
is made coarser until it fits. The file is always replaced as a whole, so readers find no incomplete
file.

A file has two lines. Each line consists of a CRC-32 (8 hexadecimal digits), a space and a JSON
value. The first value is an object with everything except the operations. The second value is the
list of operations. While a job is watched, only the first line is read.

A file also says within which time it will be written again. If this time is long past, the host is
missing: its monitor was killed, is frozen or cannot write.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from commprof.files import checked, open_regular
from commprof.text import named_ranks, printable
from commprof.trace import schema
from commprof.trace.documents import MOST_RANKS
from commprof.trace.summary import Summary, summary_of

VERSION: Final = 1
MOST_BYTES: Final = 128 << 10
#: Largest number of ranks of a host with figures of their own.
MOST_LISTED: Final = 64
MOST_WAITED_FOR: Final = 8
_MOST_SERIES: Final = 512
_MOST_HOSTS: Final = 16_384
#: A host counts as missing if its file is older than twice the interval between writes, plus this.
_LATENESS_S: Final = 5.0
#: The clocks of two hosts may differ by this much.
_SKEW_S: Final = 30.0
#: A file counts as damaged if its time is ahead of this host's clock by more than this.
_AHEAD_S: Final = 86_400.0


@dataclass(frozen=True)
class HostSummary:
    """Figures of one host's ranks, as its monitor wrote them."""

    version: int
    host: str
    #: Boot id, time namespace and PID namespace; hosts of equal names differ in these.
    machine: tuple[str, str, str]
    #: Number of elastic restarts before this one.
    attempt: int
    #: When the host's first rank began to record, in seconds since the epoch.
    began_s: float
    #: When the file was written, in seconds since the epoch.
    time_s: float
    #: Number of seconds within which the file will be written again.
    next_s: float
    #: True if all ranks of the host have ended: no newer summary will come.
    ended: bool
    world_size: int
    backend: str
    mode: str
    rank_count: int
    #: The host's ranks as series of first, last and step. Ranks are missing if there would be too
    #: many series.
    series: list[tuple[int, int, int]]
    fewest_steps: int
    #: For each name of a figure: a list with one value per listed rank; null if not known.
    figures: Any
    #: For each listed rank: time of the rank's own work per step in ns, as a list in the order of
    #: ``exposure.ORIGINS``.
    work_ns: list[Any]
    #: For each listed rank: the ranks for which it waited longest, with times in ns, as a list of
    #: rank, time, rank, time, ...
    waited_ns: list[Any]
    #: Names of operations, by code.
    ops: list[str]
    #: Id, name and size of each group in the sum.
    groups: list[tuple[int, str, int]]
    #: Sum of the summaries of the host's ranks, without operations; read by :attr:`waits`.
    summary: dict[str, Any]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The host's ranks in order."""
        parts = [range(first, last + 1, step) for first, last, step in self.series]
        return tuple(sorted(rank for part in parts for rank in part))

    @cached_property
    def waits(self) -> Summary:
        """The sum of the summaries of the host's ranks, without operations.

        Raises:
            ValueError: the sum cannot be used.
        """
        return summary_of({**self.summary, "operations": []})

    @cached_property
    def listed(self) -> tuple[int, ...]:
        """The ranks that have figures of their own."""
        return tuple(self.figures["rank"])

    def described(self) -> str:
        """Returns the host's name with its ranks, for messages."""
        return f"host {printable(self.host)} ({named_ranks(self.ranks)})"

    def is_missing(self, age_s: float) -> bool:
        """True if a newer summary should have come but has not.

        ``age_s`` is the age of this summary.
        """
        return not self.ended and age_s > 2 * self.next_s + _LATENESS_S


def path_of(directory: Path, host: str, boot_id: str) -> Path:
    """Returns the path of a host's file in the directory of its job's traces."""
    named = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{host[:80]}_{boot_id[:8]}")
    return directory / f"host_{named}.summary"


def summary_paths(directory: Path) -> list[Path]:
    """Lists the files of all hosts in a directory; empty if the directory cannot be read."""
    try:
        return sorted(directory.glob("host_*.summary"))[:_MOST_HOSTS]
    except OSError:
        return []


def read_host_summary(path: Path) -> HostSummary:
    """Reads the first line of a host's file; its ``summary`` is checked when first used.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged or of another version.
    """
    with open_regular(path) as file:
        return _first_line(file.readline(MOST_BYTES))


def read_whole(path: Path) -> tuple[HostSummary, Summary]:
    """Reads a host's file; also returns the sum of the ranks' summaries, with operations.

    The file is opened once, so that both lines are from one write. Raises the errors of
    :func:`read_host_summary`.
    """
    with open_regular(path) as file:
        lines = file.readline(MOST_BYTES), file.readline(MOST_BYTES)
    summary = _first_line(lines[0])
    operations: list[Any] = checked(_value(lines[1]), list, "the second line")
    return summary, summary_of({**summary.summary, "operations": operations})


def _first_line(line: bytes) -> HostSummary:
    value = _value(line)
    version = checked(value, dict, "it").get("version")
    if version != VERSION:
        raise ValueError(f"its version is {version!r}, and this commprof reads version {VERSION}")
    summary: HostSummary = checked(value, HostSummary)
    _check(summary)
    return summary


def _value(line: bytes) -> Any:
    if not line.endswith(b"\n"):
        raise ValueError("it ends within a line, or a line is too long")
    checksum, _, text = line[:-1].partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError("its checksum is wrong")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def _check(summary: HostSummary) -> None:
    if not summary.began_s <= summary.time_s + _SKEW_S <= time.time() + _AHEAD_S:
        raise ValueError("its time of writing is impossible: compare the clocks of the hosts")
    count = sum((last - first) // step + 1 for first, last, step in _series_of(summary))
    if not 0 < count <= summary.rank_count or len(summary.ranks) != len(set(summary.ranks)):
        raise ValueError("its series of ranks contradict its number of ranks")
    if summary.ranks[-1] >= summary.world_size or summary.mode not in schema.MODES:
        raise ValueError("its ranks or its mode are not valid")
    columns: dict[str, Any] = checked(summary.figures, dict, "figures")
    for name, column in columns.items():
        _check_numbers(column, f"figures.{name}", may_be_null=True)
    listed = checked(columns.get("rank"), list[int], "figures.rank")
    if not set(listed) <= set(summary.ranks) or len(set(listed)) != len(listed) > 0:
        raise ValueError("its listed ranks are not different ranks of the host")
    rows = [*columns.values(), summary.work_ns, summary.waited_ns]
    if {len(row) for row in rows} != {len(listed)}:
        raise ValueError("it does not hold one figure per listed rank")
    for work in summary.work_ns:
        _check_numbers(work, "work_ns")
    for pairs in summary.waited_ns:
        if len(checked(pairs, list[int], "waited_ns")) % 2:
            raise ValueError("waited_ns does not hold pairs of rank and time")
    if len({len(work) for work in summary.work_ns}) > 1:
        raise ValueError("work_ns holds different numbers of times per rank")


def _check_numbers(values: object, name: str, may_be_null: bool = False) -> None:
    """Raises ValueError if ``values`` is not a list of numbers."""
    allowed = {int, float, type(None)} if may_be_null else {int, float}
    if not isinstance(values, list) or not set(map(type, values)) <= allowed:
        raise ValueError(f"{name} is not a list of numbers")


def _series_of(summary: HostSummary) -> Iterator[tuple[int, int, int]]:
    """Yields the series of ranks; ValueError if a series is not valid."""
    for first, last, step in summary.series:
        if step < 1 or not first <= last < MOST_RANKS:
            raise ValueError("one of its series of ranks is not valid")
        yield first, last, step


def series_of(ranks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns ordered ranks as series of first, last and step.

    If there are too many series, the last ranks are left out.
    """
    series: list[tuple[int, int, int]] = []
    for rank in ranks:
        if series:
            first, last, step = series[-1]
            if first == last or rank - last == step:
                series[-1] = first, rank, rank - last
                continue
        if len(series) == _MOST_SERIES:
            break
        series.append((rank, rank, 1))
    return series


def encoded(document: Mapping[str, Any], operations: Sequence[Any]) -> bytes:
    """Returns the bytes of a file."""
    values = (
        json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        for value in (document, operations)
    )
    return b"".join(b"%08x %s\n" % (zlib.crc32(value), value) for value in values)


class HostSummaries:
    """Follows the files of a job's hosts.

    If a file is damaged, its last intact content stays in use.
    """

    def __init__(self, directory: Path) -> None:
        """``directory`` is the directory of the job's traces."""
        self._directory = directory
        self._files: dict[Path, _File] = {}

    def look(self, but: Path | None = None) -> list[SeenHost]:
        """Reads the files that have changed, and returns all hosts of the newest attempt in order.

        ``but``: a file to leave out, such as the file of the reader's own host.
        """
        for path in summary_paths(self._directory):
            if path != but:
                self._files.setdefault(path, _File(path)).look()
        files = [file for path, file in self._files.items() if path != but]
        hosts = [host for file in files for host in file.seen()]
        known = [host.summary for host in hosts if host.summary]
        attempt = max((summary.attempt for summary in known), default=0)
        began_s = max(
            (summary.began_s for summary in known if summary.attempt == attempt), default=0.0
        )
        return _named([host for host in hosts if _of_job(host, attempt, began_s - _SKEW_S)])


def running_hosts(directory: Path) -> list[SeenHost]:
    """Returns the hosts of a running job; empty if no host has recently reported that it runs."""
    hosts = HostSummaries(directory).look()
    running = any(h.summary and not h.summary.ended and not h.missing for h in hosts)
    return hosts if running else []


def _named(hosts: list[SeenHost]) -> list[SeenHost]:
    """Adds the first part of the boot id to the names of hosts with equal names."""
    count = Counter(host.name for host in hosts)
    return [
        replace(host, name=f"{host.name} ({host.summary.machine[0][:8]})")
        if host.summary is not None and count[host.name] > 1
        else host
        for host in hosts
    ]


def _of_job(host: SeenHost, attempt: int, since_s: float) -> bool:
    """False for a file that an earlier job or attempt left in the directory."""
    if host.summary is None:
        return host.since_s >= since_s
    return host.summary.attempt == attempt and host.summary.time_s >= since_s


@dataclass(frozen=True)
class SeenHost:
    """State of one host, from the host's file."""

    #: The newest intact summary; None if there was none.
    summary: HostSummary | None
    #: The host's name; the file's name if nothing more is known.
    name: str
    #: Name and ranks, for messages.
    described: str
    #: Age of the figures in seconds; without figures, age of the file's last change.
    age_s: float
    #: When the figures were written, in seconds since the epoch; without figures, time of the
    #: file's last change.
    since_s: float
    #: True if a newer summary is overdue, or if no summary can be read.
    missing: bool
    path: Path
    #: Why the newest content of the host's file cannot be read; empty if it can.
    problem: str = ""

    def sentence(self) -> str:
        """Returns a sentence about the missing host, with time and reason."""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        why = f": {self.problem}" if self.problem else ""
        return f"{self.described} is missing: no figures since {at} ({self.age_s:.0f} s ago){why}"


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] = (0, 0)
        self._summary: HostSummary | None = None
        self._problem = ""
        #: Monotonic time at which this process noticed a change of the content; None before that.
        self._changed_s: float | None = None

    def look(self) -> None:
        try:
            stat = self._path.stat()
            stamp = stat.st_mtime_ns, stat.st_ino
            if stamp == self._stamp:
                return
            summary = read_host_summary(self._path)
        except (OSError, ValueError) as error:
            self._problem = f"{self._path.name} cannot be read: {error}"
            return
        if self._stamp != (0, 0):
            self._changed_s = time.monotonic()
        self._stamp, self._summary, self._problem = stamp, summary, ""

    def seen(self) -> Iterator[SeenHost]:
        now_s = time.time()
        if self._summary is None:
            try:
                since_s = self._path.stat().st_mtime
            except OSError:
                return
            described = f"the host of {self._path.name}"
            age_s = max(0.0, now_s - since_s)
            yield SeenHost(
                None, self._path.stem, described, age_s, since_s, True, self._path, self._problem
            )
            return
        # The clocks of hosts differ, so the smallest of these ages counts: by the time in the file;
        # by the file system's time, unless the file was copied later; and since this process
        # noticed a change of the file.
        written_s, changed_s = self._summary.time_s, self._stamp[0] / 1e9
        if abs(changed_s - written_s) <= _SKEW_S:
            written_s = max(written_s, changed_s)
        age_s = max(0.0, now_s - written_s)
        if self._changed_s is not None:
            age_s = min(age_s, time.monotonic() - self._changed_s)
        yield SeenHost(
            self._summary,
            self._summary.host,
            self._summary.described(),
            age_s,
            now_s - age_s,
            self._summary.is_missing(age_s),
            self._path,
            self._problem,
        )
