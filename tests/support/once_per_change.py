"""Long tests run once per change of the code that they depend on, and say so.

A module whose ``pytestmark`` is ``pytest.mark.once_per_change(PATH, ...)`` names the repository
paths that it depends on, besides itself. ``tests/once_per_change.json`` holds which of its tests
passed, and for which content of these paths: while that is unchanged they are skipped, visibly.
``--all`` runs them all the same; ``--record-passed`` writes down what passed.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/once_per_change.json"
_MARKER = "once_per_change"
#: What counts as content: sources and data, nothing that is built.
_SUFFIXES = {
    *(".c", ".cpp", ".css", ".h", ".html", ".js", ".json", ".md", ".py", ".sh", ".toml", ".txt"),
    *(".yaml", ".yml"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("once_per_change")
    group.addoption("--all", action="store_true", help="run what passed for this code as well")
    group.addoption("--record-passed", action="store_true", help=f"write {RECORD.name}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed = recorded()
    for item in items:
        marker = item.get_closest_marker(_MARKER)
        if marker is None:
            continue
        module = str(item.path.relative_to(ROOT))
        code = digest((module, *marker.args))
        item.user_properties.append((_MARKER, code))
        entry = passed.get(module, {})
        done = entry.get("code") == code and item.name in entry["passed"]
        if done and not config.getoption("--all"):
            item.add_marker(pytest.mark.skip(reason=f"passed for this code: {RECORD.name}"))


class Recorder:
    """Collects what passed, where the reports of all workers arrive."""

    def __init__(self) -> None:
        self._passed: dict[tuple[str, str], set[str]] = {}
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        code = dict(report.user_properties).get(_MARKER)
        module, _, name = report.nodeid.partition("::")
        if code is None:
            return
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.passed and report.when == "call":
            self._passed.setdefault((module, str(code)), set()).add(name)

    def pytest_sessionfinish(self) -> None:
        kept = recorded()
        for (module, code), names in self._passed.items():
            names = {name for name in names if f"{module}::{name}" not in self._failed}
            if kept.get(module, {}).get("code") == code:
                names |= set(kept[module]["passed"])
            kept[module] = {"code": code, "passed": sorted(names)}
        kept = {module: entry for module, entry in kept.items() if (ROOT / module).exists()}
        RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-passed") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def recorded() -> dict[str, dict[str, list[str]]]:
    """By module: ``code``, the digest, and ``passed``, names of tests."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


@functools.lru_cache
def digest(paths: tuple[str, ...]) -> str:
    """Of names and contents of all source files under these paths.

    Raises:
        ValueError: a path does not exist, or is a file that does not count: nothing would be
            noticed.
    """
    total = hashlib.sha256()
    for path in paths:
        root = ROOT / path
        if not root.exists():
            raise ValueError(f"once_per_change: there is no {path}")
        if root.is_file() and root.suffix not in _SUFFIXES:
            raise ValueError(f"once_per_change: {path} is no content; add {root.suffix!r} there")
        files = [root] if root.is_file() else sorted(root.rglob("*"))
        for file in files:
            if file.is_file() and file.suffix in _SUFFIXES:
                total.update(f"{file.relative_to(ROOT)}\0".encode())
                total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]
