"""A file of the user's is not overwritten by chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from commprof.commands.options.report_file import writable_output, write_output
from commprof.errors import UsageError


def test_a_new_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    writable_output(path, force=False)
    write_output(path, "µ")
    assert path.read_bytes() == "µ".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_another_is_left_alone_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UsageError, match="--force"):
        writable_output(path, force=False)
    writable_output(path, force=True)
    write_output(path, b"new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("name", ["", "missing/a.txt"])
def test_no_place_for_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="director"):
        writable_output(tmp_path / name, force=True)


def test_a_device_is_written_to(tmp_path: Path) -> None:
    writable_output(Path("/dev/null"), force=False)
    write_output(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
