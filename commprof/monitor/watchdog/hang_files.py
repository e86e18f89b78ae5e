"""Writes the files of a hang: ``hang_N.json`` for programs, ``hang_N.txt`` for people, and stacks.

The files lie next to the ranks' traces. If a file cannot be written, the watchdog continues.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commprof.analysis.collectives.mismatches import Mismatch
from commprof.analysis.late.incidents import HANG_SCHEMA_VERSION
from commprof.analysis.late.standing import PendingOperation
from commprof.analysis.late.standstill import reasons
from commprof.files import replace_file
from commprof.monitor.rank_state import FollowedRank
from commprof.monitor.watchdog.feed import RankFeed
from commprof.monitor.watchdog.hang import Hang
from commprof.monitor.watchdog.hang_text import hang_text

_MOST_HANGS = 1000
_MOST_PENDING = 16
_NS_PER_S = 1e9


class HangFile:
    """The files of one hang. Each change rewrites the JSON file and the text file."""

    def __init__(self, directory: Path, hang: Hang, feeds: Sequence[RankFeed], now_ns: int) -> None:
        """Reserves the first free N of ``hang_N.json``, and writes the files."""
        self._directory = directory
        self._begin_ns = now_ns
        self.number = _claim(directory)
        self.value: dict[str, Any] = {
            "schema_version": HANG_SCHEMA_VERSION,
            "number": self.number,
            "host": socket.gethostname(),
            "found": now_text(),
            "found_monotonic_ns": now_ns,
            "kind": hang.kind,
            "sentence": hang.sentence,
            "accused": [{"rank": a.rank, "why": a.why, "behind": a.behind} for a in hang.accused],
            "reasons": reasons(hang.accused),
            "mismatch": _mismatch(hang.mismatch),
            "operation": hang.operation and _fields(hang.operation),
            "waiting": list(hang.waiting),
            "pending_s": None if hang.pending_s is None else round(hang.pending_s, 3),
            "waited_s": round(hang.waited_s, 3),
            "step": hang.step,
            "phase": hang.phase,
            "unseen": list(hang.unseen),
            "ranks": [_rank(feed, now_ns) for feed in feeds if feed.state is not None],
            "stacks": [],
            "ended_after_s": None,
        }
        self.write()

    def set_threshold(self, text: str) -> None:
        """Adds a text on the threshold."""
        self.value["threshold"] = text
        self.write()

    def set_sentence(self, sentence: str) -> None:
        """Replaces the diagnosis by a more detailed one."""
        self.value["sentence"] = sentence
        self.write()

    def add_stack(self, rank: int, suffix: str, text: str, problem: str) -> str:
        """Stores a rank's stacks, or the problem that occurred; returns the stack file's name."""
        name = ""
        if text:
            name = f"hang_{self.number}_rank_{rank}{suffix}.stack.txt"
            _write(self._directory / name, text)
        self.value["stacks"].append({"rank": rank, "file": name, "problem": problem})
        self.write()
        return name

    def end(self, now_ns: int) -> float:
        """Adds the end of the hang; returns the seconds since the hang was found."""
        seconds = round((now_ns - self._begin_ns) / _NS_PER_S, 3)
        self.value["ended_after_s"] = seconds
        self.write()
        return seconds

    def write(self) -> None:
        """Writes the JSON file and the text file."""
        _write(
            self._directory / f"hang_{self.number}.json", json.dumps(self.value, indent=1) + "\n"
        )
        _write(self._directory / f"hang_{self.number}.txt", hang_text(self.value))


def now_text() -> str:
    """Returns the current time in UTC, in ISO 8601 format."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _claim(directory: Path) -> int:
    """Creates ``hang_N.json`` with the first free N; returns N, or 0 on failure.

    The watchdogs of other hosts then choose another N.
    """
    for number in range(1, _MOST_HANGS):
        with suppress(OSError):
            path = directory / f"hang_{number}.json"
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            return number
        if not directory.is_dir():
            break
    return 0


def _write(path: Path, text: str) -> None:
    with suppress(OSError):
        replace_file(path, text)


def _rank(feed: RankFeed, now_ns: int) -> dict[str, Any]:
    state = feed.state
    assert state is not None
    here = feed.process is not None
    return {
        "rank": state.rank,
        "host": feed.metadata["machine"]["hostname"],
        "topology": feed.metadata.get("topology") or "",
        "pid": feed.metadata["pid"],
        "process": feed.process.state if feed.process is not None else "",
        "step": state.step,
        # Times of another host's clock cannot be compared with times of this host.
        "step_s": _ago(now_ns, state.step_begin_ns) if here else None,
        "last_record_s_ago": _ago(now_ns, state.last_ns) if here else None,
        "phase": state.phase,
        "next_collective": dict(state.next_seq),
        "pending": _pending(state, now_ns if here else 0),
        "pending_count": len(state.pending),
    }


def _mismatch(mismatch: Mismatch | None) -> dict[str, Any] | None:
    if mismatch is None:
        return None
    issued = [{**asdict(what), "ranks": list(ranks)} for what, ranks in mismatch.issued]
    return {"group": mismatch.group, "seq": mismatch.seq, "issued": issued}


def _pending(state: FollowedRank, now_ns: int) -> list[dict[str, Any]]:
    oldest = sorted(state.pending.values(), key=lambda operation: operation.issue_ns)[
        :_MOST_PENDING
    ]
    return [_operation(operation, now_ns) for operation in oldest]


def _operation(operation: PendingOperation, now_ns: int) -> dict[str, Any]:
    pending_s = _ago(now_ns, operation.issue_ns) if now_ns else None
    return {**_fields(operation), "pending_s": pending_s}


def _fields(operation: PendingOperation) -> dict[str, Any]:
    fields = asdict(operation)
    del fields["launch"], fields["path"]
    return {**fields, "line": operation.line}


def _ago(now_ns: int, then_ns: int) -> float | None:
    return round((now_ns - then_ns) / _NS_PER_S, 3) if then_ns else None
