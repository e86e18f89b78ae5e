"""Files of figures, with machine, time and commit of the measurement.

A file whose name ends in .gz is compressed.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

CONTEXT = "context"
"""The key of the description of machine, time and commit."""

_NUMBERS = re.compile(r"\[\s+([-+\d.eE,\s]+?)\s+\]")
_MACHINE = ("cpu_model", "usable_cpu_count", "memory_bytes", "kernel")


def about() -> dict[str, Any]:
    """Returns time, commit, versions and machine; imports torch."""
    from datetime import datetime, timezone
    from importlib.metadata import version

    import torch

    from commprof.capture.job.metadata import machine
    from commprof.forecast.microbench.context import git_commit

    here = machine()
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "commprof": version("commprof"),
        "torch": torch.__version__,
        "machine": {key: here[key] for key in _MACHINE},
    }


def read_json(path: Path | None) -> dict[str, Any]:
    """Returns the object in a file; empty if there is no file."""
    if path is None or not path.exists():
        return {}
    document: dict[str, Any] = json.loads(_read(path))
    return document


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    """Writes the figures with a new context, unless path is None."""
    if path is not None:
        _write(path, _text({**figures, CONTEXT: about()}))


def write_part(path: Path | None, part: str, figures: dict[str, Any], **context: str) -> None:
    """Adds figures to one part of a file; the part's older figures and other parts stay.

    A part is ``{"context": ..., "figures": ...}``. The argument ``context`` adds entries to the
    part's context, for example the measured commit.
    """
    if path is not None:
        parts = read_json(path)
        kept = {**parts.get(part, {}).get("figures", {}), **figures}
        parts[part] = {CONTEXT: {**about(), **context}, "figures": kept}
        _write(path, _text(parts))


def read_parts(path: Path | None) -> dict[str, dict[str, Any]]:
    """Returns the figures by part."""
    return {name: part["figures"] for name, part in read_json(path).items()}


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """Returns the rows of a file of JSON lines, without contexts; empty if there is no file."""
    return [row for row in _lines(path) if row.keys() != {CONTEXT}]


def contexts(path: Path) -> list[dict[str, Any]]:
    """Returns the contexts (machine and time) in a file of any kind; empty if it has none."""
    try:
        document = read_json(path)
        found = [document, *document.values()]
    except json.JSONDecodeError:  # the file has JSON lines
        found = _lines(path)
    return [one[CONTEXT] for one in found if isinstance(one, dict) and CONTEXT in one]


class Lines:
    """A file of JSON lines, to which a context and then rows are added."""

    def __init__(self, path: Path | None) -> None:
        """Opens the file at ``path``; if ``path`` is None, rows are dropped."""
        self._path = path
        self._told = False

    def append(self, row: dict[str, Any]) -> None:
        """Adds one row in a single write."""
        if self._path is None:
            return
        rows = [row] if self._told else [{CONTEXT: about()}, row]
        self._told = True
        text = "".join(json.dumps(_rounded(one)) + "\n" for one in rows).encode()
        with self._path.open("ab") as file:
            file.write(_compressed(text) if self._path.suffix == ".gz" else text)


def _text(document: dict[str, Any]) -> str:
    """Returns indented JSON, with each list of numbers on one line."""
    text = json.dumps(_rounded(document), indent=1)
    return _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


def _rounded(figures: Any) -> Any:
    """Rounds figures to nine digits, because no measurement is more precise."""
    if isinstance(figures, float):
        return float(f"{figures:.9g}")
    if isinstance(figures, dict):
        return {name: _rounded(figure) for name, figure in figures.items()}
    return (
        [_rounded(figure) for figure in figures] if isinstance(figures, (list, tuple)) else figures
    )


def _lines(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in _read(path).splitlines()]


def _read(path: Path) -> str:
    stored = path.read_bytes()
    return (gzip.decompress(stored) if path.suffix == ".gz" else stored).decode()


def _write(path: Path, text: str) -> None:
    path.write_bytes(_compressed(text.encode()) if path.suffix == ".gz" else text.encode())


def _compressed(text: bytes) -> bytes:
    return gzip.compress(text, mtime=0)  # without a time stamp, equal figures give equal files
