"""Programs that some tests need: where one is promised, its absence is a failure and no skip."""

from __future__ import annotations

import os
import shutil

import pytest

PROMETHEUS_VARIABLE = "COMMPROF_REQUIRE_PROMETHEUS"
"""1 promises ``prometheus`` and ``promtool``, which comes with it."""


def need_prometheus(program: str = "prometheus") -> None:
    """Skips the test where the program is missing, or fails it where 1 promises it."""
    if shutil.which(program) is None:
        promised = os.environ.get(PROMETHEUS_VARIABLE) == "1"
        say = pytest.fail if promised else pytest.skip
        say(f"needs {program}: apt-get install prometheus; {PROMETHEUS_VARIABLE}=1 demands it")
