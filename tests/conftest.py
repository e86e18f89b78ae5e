"""Skips that show: a test that needs a machine we are not on says so in the summary."""

from __future__ import annotations

import os
import shutil

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_gpu"):
        import torch

        if not torch.cuda.is_available():
            # Where a GPU is promised, its absence is a failure.
            promised = os.environ.get("COMMPROF_REQUIRE_GPU") == "1"
            (pytest.fail if promised else pytest.skip)("needs a CUDA device")
    if item.get_closest_marker("needs_netns") and not (os.geteuid() == 0 and shutil.which("ip")):
        pytest.skip("needs root and the ip command")
