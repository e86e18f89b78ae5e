"""Files are written whole or not at all, and read with a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from commprof.files import read_json, replace_file, replacing


def test_a_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, "[1]")
    replace_file(path, b"[1, 2]")
    assert read_json(path) == [1, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    replace_file(path, "old")

    def fail() -> None:
        with replacing(path) as partial:
            partial.write_text("half of the n")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
