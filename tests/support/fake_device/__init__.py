"""Builds the device without hardware; it is loaded in processes of the tests' own."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TREE = HERE.parents[2] / "build/fake_device"


def load() -> Any:
    """The module; its device is torch's "privateuseone". Builds it if it changed: a minute."""
    from torch.utils import cpp_extension

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja
    TREE.mkdir(parents=True, exist_ok=True)
    with (TREE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cpp_extension.load(
            "commprof_fake_device",
            [str(HERE / "fake_device.cpp")],
            extra_cflags=["-std=c++20", "-O1"],
            build_directory=str(TREE),
        )
