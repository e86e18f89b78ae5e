"""Tests that run once per change: skipped for known code, run again for any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import once_per_change

TEST = """
import pytest
pytestmark = pytest.mark.once_per_change("code")
def test_one(): pass
def test_two(): assert "bug" not in open({code!r}).read()
"""
CONFTEST = """
import pathlib
from tests.support import once_per_change as plugin
plugin.ROOT = pathlib.Path({root!r})
plugin.RECORD = plugin.ROOT / "passed.json"
pytest_plugins = ["tests.support.once_per_change"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("x = 1\n")
    (tmp_path / "test_it.py").write_text(TEST.format(code=str(tmp_path / "code" / "a.py")))
    (tmp_path / "conftest.py").write_text(CONFTEST.format(root=str(tmp_path)))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = once_per_change: x\n")
    return tmp_path


def outcome(project: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    return done.stdout.strip().splitlines()[-1]


def test_what_passed_is_skipped_until_its_code_changes(project: Path) -> None:
    assert outcome(project).startswith("2 passed")
    assert outcome(project, "--record-passed").startswith("2 passed")
    assert outcome(project).startswith("2 skipped")
    assert outcome(project, "--all").startswith("2 passed")
    (project / "code" / "b.cpp").write_text("// new\n")
    assert outcome(project).startswith("2 passed")


def test_what_fails_or_did_not_run_is_not_recorded(project: Path) -> None:
    assert outcome(project, "--record-passed", "-k", "one").startswith("1 passed")
    assert outcome(project).startswith("1 passed, 1 skipped")
    (project / "code" / "a.py").write_text("bug = 1\n")
    assert outcome(project, "--record-passed").startswith("1 failed, 1 passed")
    assert outcome(project).startswith("1 failed, 1 skipped")


@pytest.mark.parametrize("name", ["step.c", "workflow.yml"])
def test_what_counts_as_content(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_per_change, "ROOT", tmp_path)
    (tmp_path / name).write_text("1")
    before = once_per_change.digest.__wrapped__((name,))
    (tmp_path / name).write_text("2")
    assert once_per_change.digest.__wrapped__((name,)) != before


def test_a_named_file_that_does_not_count_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once_per_change, "ROOT", tmp_path)
    (tmp_path / "picture.png").write_text("1")
    with pytest.raises(ValueError, match=r"picture\.png is no content; add '\.png' there"):
        once_per_change.digest.__wrapped__(("picture.png",))
    with pytest.raises(ValueError, match=r"there is no gone\.py"):
        once_per_change.digest.__wrapped__(("gone.py",))
