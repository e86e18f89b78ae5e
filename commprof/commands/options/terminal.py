"""Width and colours of a command's output."""

from __future__ import annotations

import os
import shutil
import sys


def prose_width() -> int:
    """Width in characters to which prose is wrapped: COLUMNS, else the terminal's, else 100."""
    return shutil.get_terminal_size((100, 24)).columns


def table_width() -> int | None:
    """Width in characters at which tables are split; None in files and pipes: no table is split."""
    return prose_width() if sys.stdout.isatty() else None


def colours() -> bool:
    """True if standard output is a terminal that shows colours, and NO_COLOR is not set."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return wanted and sys.stdout.isatty()
