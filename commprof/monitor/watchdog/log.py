"""What the watchdog says: on stderr, and into files beside the traces."""

from __future__ import annotations

import json
import re
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from commprof.monitor.watchdog.hang_files import now_text
from commprof.report.plain_text import printable

#: More are not written; a job whose every step differs must not fill the disk.
_MOST_EVENTS = 1000


class Log:
    """Log of this host's watchdog. A disk that is full or gone costs its lines, no more."""

    def __init__(self, directory: Path, quiet: bool = False) -> None:
        """quiet: nothing on stderr."""
        host = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname())
        self._text = directory / f"watchdog_{host}.log"
        self._events = directory / f"watchdog_{host}.jsonl"
        self._quiet = quiet
        self._count = 0

    def say(self, text: str) -> None:
        """One line."""
        line = printable(text)
        _append(self._text, f"{now_text()} {line}\n")
        if not self._quiet:
            with suppress(OSError, ValueError):
                print(f"commprof: watchdog: {line}", file=sys.stderr, flush=True)

    def event(self, kind: str, sentence: str, what: Any) -> None:
        """Says a sentence, and writes its fields for programs; what: a dataclass."""
        self._count += 1
        if self._count > _MOST_EVENTS:
            return
        self.say(sentence)
        fields = {"kind": kind, "time": now_text(), "sentence": sentence, **asdict(what)}
        _append(self._events, json.dumps(fields) + "\n")


def _append(path: Path, text: str) -> None:
    with suppress(OSError), path.open("a") as file:
        file.write(text)
