from __future__ import annotations

import re
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: A laptop shows this many lines of a page on GitHub without scrolling.
FIRST_SCREEN_LINES = 24


def test_the_first_screen_of_the_readme_has_a_block_of_the_two_commands() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:FIRST_SCREEN_LINES])
    blocks = re.findall(r"^```\n(.*?)^```$", screen, re.DOTALL | re.MULTILINE)
    assert ["make run", "make test"] in [
        [line.split("#")[0].strip() for line in block.splitlines()] for block in blocks
    ]


def test_ci_runs_make_test_and_then_the_rest() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    made = [line.split("#")[0].strip() for line in lines if line.startswith("make ")]
    assert made == ["make lint", "make docs", "make test", "make test-slow"]


def test_test_and_test_slow_run_each_test_once() -> None:
    expressions = []
    for target in ("test", "test-slow"):
        expressions += re.findall(r"pytest .*-m '?([a-z ]+?)'?$", recipe(target), re.MULTILINE)
    assert len(expressions) == 4
    for slow, measures in product((False, True), repeat=2):
        marks = {"slow": slow, "measures": measures}
        chosen = [text for text in expressions if eval(text, {}, marks)]
        assert len(chosen) == 1, marks


def test_test_all_is_make_test_and_then_make_test_slow() -> None:
    assert [line.split()[-1] for line in recipe("test-all").splitlines()] == ["test", "test-slow"]


def recipe(target: str) -> str:
    commands = rf"^{target}:.*\n((?:\t.*\n)+)"
    match = re.search(commands, (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert match is not None, target
    return match[1]
