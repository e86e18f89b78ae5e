"""A file that a command is to write at its end: tried at its beginning."""

from __future__ import annotations

from pathlib import Path

from commprof.errors import UsageError


def writable_file(path: Path | None, option: str = "--json") -> Path | None:
    """The path, found writable before the work. Raises UsageError where it is not."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a"):
                pass
        except OSError as error:
            raise UsageError(
                f"cannot write {option} {path}: {error.strerror}; name another file"
            ) from None
    return path
