"""The table of promises in CONTRIBUTING.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROWS = re.findall(
    r"^\| (.+?) \| (`tests/.+?) \| `(make [a-z-]+)`.*\|$",
    (ROOT / "CONTRIBUTING.md").read_text(),
    re.MULTILINE,
)


def test_the_table_is_found() -> None:
    assert len(ROWS) >= 10


@pytest.mark.parametrize(("promise", "files", "target"), ROWS)
def test_a_promise_has_its_tests(promise: str, files: str, target: str) -> None:
    """In the target that is named: a module that is slow as a whole is not in make test."""
    slow = []
    for name in re.findall(r"`(tests/[\w/]+\.py)`", files):
        text = (ROOT / name).read_text()
        assert "def test_" in text, promise
        module = re.search(r"^pytestmark = (\[.*?^\]|.*?$)", text, re.MULTILINE | re.DOTALL)
        slow.append(module is not None and "pytest.mark.slow" in module.group())
    assert slow
    assert set(slow) == {target == "make test-all"}, promise
