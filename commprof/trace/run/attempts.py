"""The traces of a job that was restarted: each attempt has its own, side by side.

``rank_3.trace`` is of the first attempt, ``rank_3.attempt_2.trace`` of the second restart.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from commprof.errors import UsageError

_RESTARTS = "TORCHELASTIC_RESTART_COUNT"

_NAME = re.compile(r"rank_(\d{1,9})(?:\.attempt_(\d{1,9}))?\.trace")


def rank_and_attempt(path: Path) -> tuple[int, int] | None:
    """Returns what the name of a trace says; None for another file."""
    name = _NAME.fullmatch(path.name)
    return (int(name[1]), int(name[2] or 0)) if name else None


def attempt_paths(directory: Path) -> dict[int, dict[int, Path]]:
    """Traces by attempt, in order, and by rank."""
    found: dict[int, dict[int, Path]] = {}
    for path in directory.glob("rank_*.trace"):
        named = rank_and_attempt(path)
        if named is not None:
            found.setdefault(named[1], {})[named[0]] = path
    return {attempt: dict(sorted(found[attempt].items())) for attempt in sorted(found)}


def last_attempt(directory: Path) -> dict[int, Path]:
    """Traces by rank of the attempt that began last: what a report's figures are of."""
    attempts = attempt_paths(directory)
    return attempts[max(attempts)] if attempts else {}


def stem_of(rank: int, attempt: int) -> str:
    """What the names of a rank's files begin with."""
    return f"rank_{rank}" if attempt == 0 else f"rank_{rank}.attempt_{attempt}"


def restart_count() -> int:
    """How often the launcher of this process has started its ranks again.

    Raises:
        UsageError: the variable that says so holds something else.
    """
    text = os.environ.get(_RESTARTS) or "0"
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"{_RESTARTS}={text!r} is no number of restarts (allowed: 0 or more)")
    return int(text)
