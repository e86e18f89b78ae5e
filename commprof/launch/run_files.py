"""Writes files that a run can do without: if a write fails, the run goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from commprof.files import replace_file
from commprof.invocation import quoted
from commprof.trace.run.run_directory import RUN_FILE


def keep_text(path: Path, text: str) -> bool:
    """Writes a file atomically; if that fails, prints the reason on stderr.

    Returns True if the file was written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        print(f"commprof: cannot write {quoted(path)}: {error.strerror}", file=sys.stderr)
        return False
    return True


def save_context(directory: Path, context: dict[str, Any]) -> None:
    """Writes ``run.json``; if the write fails, prints the reason on stderr."""
    keep_text(directory / RUN_FILE, json.dumps(context, indent=1) + "\n")
