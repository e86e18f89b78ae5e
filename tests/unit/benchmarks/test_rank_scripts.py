"""Benchmarks start these scripts by their path: what they import must be found from there."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

RANKS = Path(__file__).parents[3] / "benchmarks/ranks"


@pytest.mark.parametrize("script", sorted(RANKS.glob("*.py")), ids=lambda path: path.stem)
def test_what_it_imports_is_there(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(RANKS), *sys.path])
    names = []
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.append(node.module)
    assert names
    assert [name for name in names if importlib.util.find_spec(name.split(".")[0]) is None] == []
