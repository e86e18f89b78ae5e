"""Ctrl-C at eight moments, from the first import to the last line: nothing of it is left behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from commprof import _native
from tests.support.machines.faults import interrupts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
]

PARTS = 4


@pytest.fixture(scope="module")
def lengths_s(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    places = {kind: tmp_path_factory.mktemp(kind) for kind in interrupts.KINDS}
    return {kind: interrupts.length_s(kind, place) for kind, place in places.items()}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", list(interrupts.KINDS))
def test_ctrl_c_at_any_moment(
    kind: str, part: int, lengths_s: dict[str, float], tmp_path: Path
) -> None:
    chance = random.Random(f"{kind} {part}")
    after_s = interrupts.moment_s(lengths_s[kind], part, PARTS, chance)
    assert interrupts.interrupt(kind, after_s, tmp_path).complaint() == ""


def test_whose_traceback_it_is() -> None:
    script = 'Traceback (most recent call last):\n  File "{}", line 1\nKeyboardInterrupt\n'
    theirs = script.format(interrupts.SCRIPT)
    ours = script.format(f"{interrupts._PACKAGE}commands/run.py")
    assert interrupts.own_tracebacks(f"before\n{theirs}{ours}after\n") == [f"{ours}after\n"]
