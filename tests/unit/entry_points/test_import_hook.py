"""The import hook that starts capture in scripts, beside other tools' import hooks."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from commprof.capture import boot


class OtherTool(importlib.abc.MetaPathFinder):
    """Finds the module itself, as a tracer that rewrites its source does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "watched":
            return None
        loader = importlib.machinery.SourceFileLoader(name, str(self.path))
        return importlib.machinery.ModuleSpec(name, loader, origin=str(self.path))


def test_other_tools_hooks_find_the_module_and_ours_runs_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text("by = 'the other tool'\n")
    monkeypatch.setattr(boot, "_TARGET", "watched")
    seen: list[str] = []
    ours = boot._Finder(lambda module: seen.append(module.by))
    theirs = OtherTool(tmp_path / "theirs.py")
    monkeypatch.setattr(sys, "meta_path", [ours, theirs, *sys.meta_path])
    module = importlib.import_module("watched")
    monkeypatch.delitem(sys.modules, "watched")
    assert module.by == "the other tool"
    assert seen == ["the other tool"]
    assert ours not in sys.meta_path
