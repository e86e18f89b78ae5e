"""Names of local variables and arguments say what they hold."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Names that say nothing about what they hold.
EMPTY = {"found", "each", "one", "at", "own", "said", "kept", "known", "place"}
#: Most such names in a folder: lower the number when they become fewer, never raise it.
MOST = {"commprof/report": 101}


def empty_names(text: str) -> int:
    """Counts bindings of such names: assignments, loops and arguments."""
    nodes = [*ast.walk(ast.parse(text))]
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    arguments = [node.arg for node in nodes if isinstance(node, ast.arg)]
    return sum(name in EMPTY for name in (*stored, *arguments))


def test_bindings_of_empty_names_are_counted() -> None:
    assert empty_names("def f(found, rank):\n    for one in found:\n        place = one\n") == 3
    assert empty_names("print(found)") == 0


def test_names_that_say_nothing_become_no_more() -> None:
    for folder, most in MOST.items():
        counts = Counter(
            {
                path.relative_to(ROOT).as_posix(): empty_names(path.read_text())
                for path in (ROOT / folder).rglob("*.py")
            }
        )
        assert counts.total() <= most, counts.most_common(10)
