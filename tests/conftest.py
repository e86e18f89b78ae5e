"""Skips that show: a test that needs a machine we are not on says so in the summary.

And second tries that show: a test that measures may be disturbed by others on the machine. What
is wrong fails every time; what the machine disturbed once succeeds, and the summary tells of it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

_TRIES_AGAIN = 2

# As in an environment that is activated: commands are printed as `commprof ...`.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("measures"):
            item.add_marker(pytest.mark.flaky(reruns=_TRIES_AGAIN))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_gpu"):
        import torch

        if not torch.cuda.is_available():
            # Where a GPU is promised, its absence is a failure.
            promised = os.environ.get("COMMPROF_REQUIRE_GPU") == "1"
            (pytest.fail if promised else pytest.skip)("needs a CUDA device")
    if item.get_closest_marker("needs_netns") and not (os.geteuid() == 0 and shutil.which("ip")):
        pytest.skip("needs root and the ip command")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    slow = [
        item
        for item in terminalreporter.stats.get("deselected", [])
        if item.get_closest_marker("slow")
    ]
    if slow and "not slow" in terminalreporter.config.getoption("markexpr"):
        terminalreporter.write_line(f"{len(slow)} slow tests were deselected: make test-all")
