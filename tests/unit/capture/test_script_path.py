from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from commprof.capture.job.metadata import script_path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "src" / "train.py"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def run_as(monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    main = ModuleType("__main__")
    if file is not None:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)


def test_python_gives_the_absolute_path(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    run_as(monkeypatch, str(script))
    assert script_path() == str(script)


@pytest.mark.parametrize("moved", [False, True])
def test_a_relative_path_is_found_also_from_another_folder(
    monkeypatch: pytest.MonkeyPatch, script: Path, tmp_path: Path, moved: bool
) -> None:
    run_as(monkeypatch, "src/train.py")
    monkeypatch.setattr(sys, "path", [str(script.parent) if moved else "", *sys.path])
    monkeypatch.chdir(tmp_path if moved else tmp_path / "job")
    assert script_path() == str(script)


def test_another_file_of_the_same_name_is_not_the_script(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    run_as(monkeypatch, "gone/train.py")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(script.parent)
    assert script_path() == ""


@pytest.mark.parametrize("file", [None, "gone.py"])
def test_without_a_file_there_is_no_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    run_as(monkeypatch, file)
    assert script_path() == ""
