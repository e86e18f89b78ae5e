"""How wide what a command prints may be."""

from __future__ import annotations

import shutil
import sys


def prose_width() -> int:
    """Columns that prose is wrapped to: the terminal's, or COLUMNS, or 100."""
    return shutil.get_terminal_size((100, 24)).columns


def table_width() -> int | None:
    """Columns that tables are split to; None in files and pipes, where a table stays one table."""
    return prose_width() if sys.stdout.isatty() else None
