from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest

PROMETHEUS_VARIABLE = "COMMPROF_REQUIRE_PROMETHEUS"
"""If this variable is 1, tests of Prometheus run even without Prometheus, and then fail."""
_PROMETHEUS = frozenset({"prometheus", "promtool"})
_PACKAGES = {**dict.fromkeys(_PROMETHEUS, "prometheus"), "mpirun": "openmpi-bin"}


def needs(*names: str) -> tuple[pytest.MarkDecorator, ...]:
    named = tuple(filter(None, names))
    return (pytest.mark.needs(*named),) if named else ()


def missing(item: pytest.Item) -> set[str]:
    names = {name for marker in item.iter_markers("needs") for name in marker.args}
    if os.environ.get(PROMETHEUS_VARIABLE) == "1":
        names -= _PROMETHEUS
    return {name for name in names if find_spec(name) is None and shutil.which(name) is None}


def how_to_run(names: set[str]) -> str:
    packages = sorted({_PACKAGES[name] for name in names & _PACKAGES.keys()})
    programs = f"apt-get install {' '.join(packages)} && make test-all" if packages else ""
    libraries = "make integrations" if names - _PACKAGES.keys() else ""
    return " or ".join(filter(None, (libraries, programs)))
