"""What some tests need besides this project: libraries, and programs.

Where one is missing, its tests are deselected and counted; where it is promised, they run and fail.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest

PROMETHEUS_VARIABLE = "COMMPROF_REQUIRE_PROMETHEUS"
"""1 promises ``prometheus`` and ``promtool``, which comes with it."""
_PROMETHEUS = frozenset({"prometheus", "promtool"})


def needs(*names: str) -> tuple[pytest.MarkDecorator, ...]:
    """Marks a case of a table that is left out where one of these is not installed."""
    named = tuple(filter(None, names))
    return (pytest.mark.needs(*named),) if named else ()


def missing(item: pytest.Item) -> set[str]:
    """Of the libraries and programs that a test needs, those that are not installed."""
    names = {name for marker in item.iter_markers("needs") for name in marker.args}
    if os.environ.get(PROMETHEUS_VARIABLE) == "1":
        names -= _PROMETHEUS
    return {name for name in names if find_spec(name) is None and shutil.which(name) is None}


def how_to_run(names: set[str]) -> str:
    """The command that runs the tests which need these."""
    programs = "apt-get install prometheus && make test-all" if names & _PROMETHEUS else ""
    libraries = "make integrations" if names - _PROMETHEUS else ""
    return " or ".join(filter(None, (libraries, programs)))
