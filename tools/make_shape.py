"""Writes measures of the code's structure into docs/architecture.md.

    python -m tools.make_shape [FILE]

FILE: where to write the page, instead of docs/architecture.md.

The measures show how far the parts of the code depend on each other. The column "before" was
counted in the same way at commit 8668001c, before the satellites (the packages around the profiler)
were split off.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from commprof import satellites
from commprof.commands import main as commprof
from commprof.trace.run import run_directory
from tests.support.builders.run_directories import ranks_of, write_run
from tools.make_walks import PAGE, ROOT, rooms

PACKAGE = ROOT / "commprof"
BEGIN, END = "<!-- shape: python -m tools.make_shape -->\n", "<!-- end of shape -->\n"


@dataclass(frozen=True)
class Measure:
    """One row of the table, with the names of the counted items in `which`."""

    what: str
    before: str
    now: int
    which: str = ""


def files_that_import_satellites() -> list[str]:
    """Returns the files of the profiler that import a satellite, also inside functions."""
    return [
        file.relative_to(PACKAGE).as_posix()
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.relative_to(PACKAGE).parts[0] not in satellites.NAMES
        and any(
            name.startswith("commprof.") and name.split(".")[1] in satellites.NAMES
            for name in imports_of(file, PACKAGE)
        )
    ]


def imports_of(file: Path, package: Path) -> Iterator[str]:
    """Returns the absolute dotted names that a module imports; `from a import b` gives `a.b`."""
    parents = ["commprof", *file.relative_to(package).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base += [node.module] if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def folder_of(name: str, package: Path) -> str | None:
    """Returns the folder of the package or module that an absolute dotted name begins with."""
    parts = name.split(".")
    if parts[0] != "commprof":
        return None
    path = package
    for part in parts[1:]:
        if not (path / part).is_dir():
            break
        path /= part
    return path.relative_to(package).as_posix()


def mutual_imports(package: Path) -> list[str]:
    """Returns the pairs of folders that import each other, except a folder and its subfolder."""
    imported: dict[str, set[str]] = {}
    for file in package.rglob("*.py"):
        folder = file.parent.relative_to(package).as_posix()
        targets = {folder_of(name, package) for name in imports_of(file, package)}
        imported.setdefault(folder, set()).update(target for target in targets if target)
    return sorted(
        f"{first} {second}"
        for first, targets in imported.items()
        for second in targets
        if first < second
        and first in imported.get(second, ())
        and not Path(second).is_relative_to(first)
    )


def rules_in_two_languages() -> list[list[str]]:
    """Returns the rows of docs/architecture.md's table of rules that exist in two languages."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("<!-- rules in two languages")[2].partition("<!-- end of rules")[0]
    return [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in table.splitlines()[3:]]


def most_readings(run: Path) -> int:
    """Returns how often a full report reads the trace that it reads most often."""
    readings: Counter[Path] = Counter()
    read = run_directory.read_trace

    def counting(path: Path, *rest: Any, **options: Any) -> Any:
        readings[Path(path)] += 1
        return read(path, *rest, **options)

    quiet = contextlib.redirect_stdout(io.StringIO())
    with patch.object(run_directory, "read_trace", counting), quiet:
        commprof(["report", str(run), "--all", "--price-per-hour", "3"])
    return max(readings.values())


def classes(package: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yields the file and the class, for each public class at the top level of a module."""
    for file in sorted(package.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield file.relative_to(ROOT).as_posix(), node


def repeated_classes() -> list[str]:
    """Returns the names of public classes that several modules define."""
    homes = Counter(node.name for _, node in classes(PACKAGE))
    return sorted(name for name, count in homes.items() if count > 1)


def numbers_of_fields() -> dict[str, int]:
    """Returns the number of annotated fields of each public class in commprof/analysis."""
    return {
        node.name: sum(isinstance(field, ast.AnnAssign) for field in node.body)
        for _, node in classes(PACKAGE / "analysis")
    }


def measures() -> list[Measure]:
    """Returns all measures of the present code."""
    importing, mutual = files_that_import_satellites(), mutual_imports(PACKAGE)
    repeated = repeated_classes()
    fields, largest = max((number, name) for name, number in numbers_of_fields().items())
    with tempfile.TemporaryDirectory() as place:
        run = write_run(Path(place) / "run", ranks_of(2, 12))
        readings, crossed = most_readings(run), len(rooms(["report", str(run), "--all"]))
    return [
        Measure("files of the profiler that import a satellite", "24", len(importing)),
        Measure("pairs of folders that import each other, neither in the other", "14", len(mutual)),
        Measure("readings of a trace by `report RUN --all --price-per-hour 3`", "4", readings),
        Measure("folders that `report RUN --all` crosses", "20", crossed),
        Measure("rules in two languages, listed below", "11", len(rules_in_two_languages())),
        Measure("names of public classes used twice", "33", len(repeated), ", ".join(repeated)),
        Measure("fields of the largest class in commprof/analysis", "47", fields, largest),
    ]


def page() -> str:
    """Returns the page with the measures of the present code."""
    rows = [
        f"| {row.what} | {row.before} | {row.now}{f' ({row.which})' if row.which else ''} |"
        for row in measures()
    ]
    table = "\n".join(["", "| what | before | now |", "|---|---|---|", *rows, "", ""])
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table + END + after


if __name__ == "__main__":
    Path(*sys.argv[1:] or [PAGE]).write_text(page())
