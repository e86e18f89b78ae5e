from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commprof.commands import main
from commprof.trace.run import run_directory
from tests.support.builders.run_directories import ranks_of, write_run

RANKS = 2


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    paths: list[Path] = []
    read = run_directory.read_trace

    def counting(path: Path, *rest: Any, **options: Any) -> Any:
        paths.append(Path(path))
        return read(path, *rest, **options)

    monkeypatch.setattr(run_directory, "read_trace", counting)
    return paths


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--all",),
        ("--price-per-hour", "3"),
        ("--all", "--price-per-hour", "3"),
        ("--format", "json", "--price-per-hour", "3"),
        ("--format", "markdown", "--price-per-hour", "3"),
        ("--format", "html", "-o", "-", "--price-per-hour", "3"),
        ("--format", "csv", "--rows", "steps"),
    ],
    ids=" ".join,
)
def test_a_report_reads_each_trace_once(
    tmp_path: Path, opened: list[Path], options: tuple[str, ...]
) -> None:
    write_run(tmp_path / "run", ranks_of(RANKS, 12))
    assert main(["report", str(tmp_path / "run"), *options]) == 0
    assert sorted(path.name for path in opened) == [f"rank_{rank}.trace" for rank in range(RANKS)]
