from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.machines.programs.programs import how_to_run, missing

_TRIES_AGAIN = 2
_DESELECTED = pytest.StashKey[list[pytest.Item]]()

# Without bytecode files, each of hundreds of processes would compile commprof for 0.5 s.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# This folder does not exist, so the tests use no machine profile of the user.
os.environ["XDG_CONFIG_HOME"] = str(Path(sys.prefix) / "no_configuration")
# In an activated environment, commands are printed as `commprof ...`.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def pytest_configure() -> None:
    # A process that a shell starts in the background ignores SIGINT, and so do its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    without = [item for item in items if missing(item)]
    items[:] = [item for item in items if not missing(item)]
    config.hook.pytest_deselected(items=without)
    for item in items:
        # Other processes can disturb a measurement, so a failed test that measures runs again.
        if item.get_closest_marker("measures"):
            item.add_marker(pytest.mark.flaky(reruns=_TRIES_AGAIN))


def pytest_deselected(items: Iterable[pytest.Item]) -> None:
    for item in items:
        item.config.stash.setdefault(_DESELECTED, []).append(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_gpu"):
        import torch

        if not torch.cuda.is_available():
            promised = os.environ.get("COMMPROF_REQUIRE_GPU") == "1"
            (pytest.fail if promised else pytest.skip)("needs a CUDA device")
    if item.get_closest_marker("needs_netns") and not (os.geteuid() == 0 and shutil.which("ip")):
        pytest.skip("needs root and the ip command")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    # Under xdist, only the workers know the deselected tests, so nothing is printed here.
    deselected = config.stash.get(_DESELECTED, [])
    without = [item for item in deselected if missing(item)]
    slow = [item for item in deselected if item.get_closest_marker("slow") and item not in without]
    if slow and "not slow" in config.getoption("markexpr"):
        terminalreporter.write_line(f"{len(slow)} slow tests were deselected: make test-slow")
    if without:
        names = set().union(*map(missing, without))
        terminalreporter.write_line(
            f"{len(without)} tests of {', '.join(sorted(names))} were deselected: "
            f"{how_to_run(names)}"
        )
