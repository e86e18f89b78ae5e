"""Libraries and programs that some tests need besides this project.

If one is missing, its tests are deselected and counted. If a variable such as
``COMMPROF_REQUIRE_PROMETHEUS`` promises it, its tests run, and fail without it.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest

PROMETHEUS_VARIABLE = "COMMPROF_REQUIRE_PROMETHEUS"
"""Variable that promises ``prometheus``, and ``promtool`` of the same package, if it is 1."""
_PROMETHEUS = frozenset({"prometheus", "promtool"})
#: Debian's package of each program that some tests need.
_PACKAGES = {**dict.fromkeys(_PROMETHEUS, "prometheus"), "mpirun": "openmpi-bin"}


def needs(*names: str) -> tuple[pytest.MarkDecorator, ...]:
    """Marks a test case that is left out if one of these is not installed."""
    named = tuple(filter(None, names))
    return (pytest.mark.needs(*named),) if named else ()


def missing(item: pytest.Item) -> set[str]:
    """Returns the libraries and programs that a test needs and that are not installed."""
    names = {name for marker in item.iter_markers("needs") for name in marker.args}
    if os.environ.get(PROMETHEUS_VARIABLE) == "1":
        names -= _PROMETHEUS
    return {name for name in names if find_spec(name) is None and shutil.which(name) is None}


def how_to_run(names: set[str]) -> str:
    """Returns the command that runs the tests which need these."""
    packages = sorted({_PACKAGES[name] for name in names & _PACKAGES.keys()})
    programs = f"apt-get install {' '.join(packages)} && make test-all" if packages else ""
    libraries = "make integrations" if names - _PACKAGES.keys() else ""
    return " or ".join(filter(None, (libraries, programs)))
