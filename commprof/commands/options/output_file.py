"""Files that a command writes at its end: tried at its beginning, or kept if that can be."""

from __future__ import annotations

import sys
from pathlib import Path

from commprof.errors import UsageError
from commprof.files import replace_file
from commprof.invocation import quoted


def writable_file(path: Path | None, option: str = "--json") -> Path | None:
    """The path, found writable before the work. Raises UsageError where it is not."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a"):
                pass
        except OSError as error:
            raise UsageError(
                f"cannot write {option} {quoted(path)}: {error.strerror}; name another file"
            ) from None
    return path


def keep_text(path: Path, text: str) -> bool:
    """Writes a file of the run directory whole, or says why it cannot; the work is done anyway.

    Returns whether it is written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        print(f"commprof: cannot write {quoted(path)}: {error.strerror}", file=sys.stderr)
        return False
    return True
