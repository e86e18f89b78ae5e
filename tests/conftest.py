"""What is left out shows: in the last lines of a run, with the command that runs it.

And second tries that show: a test that measures may be disturbed by others on the machine. What
is wrong fails every time; what the machine disturbed once succeeds, and the summary tells of it.
"""

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

# Hundreds of processes import the same modules: compiling commprof takes each of them 0.5 s.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# As in an environment that is activated: commands are printed as `commprof ...`.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def pytest_configure() -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    without = [item for item in items if missing(item)]
    items[:] = [item for item in items if not missing(item)]
    config.hook.pytest_deselected(items=without)
    for item in items:
        if item.get_closest_marker("measures"):
            item.add_marker(pytest.mark.flaky(reruns=_TRIES_AGAIN))


def pytest_deselected(items: Iterable[pytest.Item]) -> None:
    for item in items:
        item.config.stash.setdefault(_DESELECTED, []).append(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_gpu"):
        import torch

        if not torch.cuda.is_available():
            # Where a GPU is promised, its absence is a failure.
            promised = os.environ.get("COMMPROF_REQUIRE_GPU") == "1"
            (pytest.fail if promised else pytest.skip)("needs a CUDA device")
    if item.get_closest_marker("needs_netns") and not (os.geteuid() == 0 and shutil.which("ip")):
        pytest.skip("needs root and the ip command")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    # Under xdist the workers collect: `make test` ends with a run that has none.
    deselected = config.stash.get(_DESELECTED, [])
    without = [item for item in deselected if missing(item)]
    slow = [item for item in deselected if item.get_closest_marker("slow") and item not in without]
    if slow and "not slow" in config.getoption("markexpr"):
        terminalreporter.write_line(f"{len(slow)} slow tests were deselected: make test-all")
    if without:
        names = set().union(*map(missing, without))
        terminalreporter.write_line(
            f"{len(without)} tests of {', '.join(sorted(names))} were deselected: "
            f"{how_to_run(names)}"
        )
