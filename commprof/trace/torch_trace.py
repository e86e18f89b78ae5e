"""Traces of ``torch.profiler``, read event by event.

The text of a trace is held in memory, its events are not: a trace of some hundred megabytes would
be several gigabytes of Python objects.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commprof.errors import CommprofError
from commprof.files import read_bytes
from commprof.invocation import quoted
from commprof.shapes import checked

#: More than 60 years; a clock of 64 bits holds it in nanoseconds.
_MOST_US = 2e15
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[\s,:]*")


@dataclass(frozen=True)
class TorchTrace:
    """One process as torch.profiler saw it."""

    path: Path
    #: Unix time in ns at which the trace's own times begin.
    base_ns: int
    #: From ``distributedInfo``; None where the process group was not there when it was written.
    rank: int | None
    #: Process ids of its events that are numbers, of the operating system or of a device.
    pids: frozenset[int]
    #: When its first event begins, in µs since ``base_ns``.
    first_us: float
    text: str = field(repr=False)
    #: Where the array of events begins in it.
    events_at: int

    def events(self) -> Iterator[dict[str, Any]]:
        """Every event, as written; ``ts`` and ``dur`` in µs, ``ts`` since ``base_ns``."""
        at = _skip(self.text, self.events_at + 1)
        while self.text[at : at + 1] not in ("]", ""):
            event, at = _value(self.text, at, self.path)
            if isinstance(event, dict):
                yield event
            at = _skip(self.text, at)


def read_torch_trace(path: Path) -> TorchTrace:
    """Reads the head of a trace, and all of it once for its processes.

    Raises:
        CommprofError: it cannot be opened, or is no trace of torch.profiler with its begin.
    """
    text = _text(path)
    head, events_at, seen = _head(text, path)
    base_ns = head.get("baseTimeNanoseconds")
    if events_at is None or not isinstance(base_ns, int):
        raise CommprofError(
            f"{quoted(path)} is no trace of torch.profiler: it lacks "
            f"{'traceEvents' if events_at is None else 'baseTimeNanoseconds'}; give what "
            "export_chrome_trace() or tensorboard_trace_handler() wrote"
        )
    distributed = head.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return TorchTrace(
        path=path,
        base_ns=base_ns,
        rank=rank if isinstance(rank, int) else None,
        pids=frozenset(seen.pids),
        first_us=seen.first_us,
        text=text,
        events_at=events_at,
    )


def _text(path: Path) -> str:
    try:
        data = read_bytes(path)
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise CommprofError(f"{quoted(path)} cannot be read: {error}") from None


@dataclass
class _Seen:
    """What must be known of all events before the first can be used."""

    pids: set[int] = field(default_factory=set)
    first_us: float = math.inf
    events: int = 0

    def add(self, event: Any) -> None:
        """Looks at one event; what is none is passed over. ValueError: its time is none."""
        self.events += 1
        if not isinstance(event, dict) or event.get("ph") == "M":
            return
        pid, time_us = event.get("pid"), event.get("ts")
        if isinstance(pid, int):
            self.pids.add(pid)
        if time_us is not None:
            self.first_us = min(self.first_us, checked(time_us, float, "ts"))
            if not abs(time_us) < _MOST_US:
                raise ValueError(f"ts is not a time in microseconds: {time_us!r}")


def _head(text: str, path: Path) -> tuple[dict[str, Any], int | None, _Seen]:
    """All top-level values but the events; where these begin, and what was seen in them."""
    head: dict[str, Any] = {}
    events_at, seen = None, _Seen()
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return head, None, seen
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        key, at = _value(text, at, path)
        at = _skip(text, at)
        if key == "traceEvents" and text[at : at + 1] == "[":
            events_at = at
            at = _skip(text, at + 1)
            while text[at : at + 1] not in ("]", ""):
                event, at = _value(text, at, path)
                at = _skip(text, at)
                try:
                    seen.add(event)
                except ValueError as error:
                    raise CommprofError(f"{quoted(path)}: event {seen.events}: {error}") from None
            at += 1
        else:
            head[str(key)], at = _value(text, at, path)
        at = _skip(text, at)
    return head, events_at, seen


def _value(text: str, at: int, path: Path) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise CommprofError(f"{quoted(path)} is no JSON: {error}") from None


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
