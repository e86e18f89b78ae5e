"""Width and colours of a command's output."""

from __future__ import annotations

import os
import shutil
import sys


def prose_width() -> int:
    """Returns the width of prose in characters: COLUMNS, else the terminal's width, else 100."""
    return shutil.get_terminal_size((100, 24)).columns


def table_width() -> int | None:
    """Returns the largest width of a table in characters; None for no limit, in files and pipes."""
    return prose_width() if sys.stdout.isatty() else None


def colours() -> bool:
    """True if standard output is a terminal that shows colours, and NO_COLOR is not set."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return wanted and sys.stdout.isatty()
