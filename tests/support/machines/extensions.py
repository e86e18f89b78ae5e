"""Builds the tests' C++ extensions; ``python -m tests.support.machines.extensions`` builds all."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

BUILD = Path(__file__).parents[3] / "build"
_SUPPORT = Path(__file__).parents[1]
SOURCES = {
    "fake_device": _SUPPORT / "fake_device/fake_device.cpp",
    "foreign_backend": _SUPPORT / "ranks/devices/foreign_backend.cpp",
}


def load(name: str) -> Any:
    from torch.utils import cpp_extension

    # torch looks for ninja in PATH.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tree = BUILD / name
    tree.mkdir(parents=True, exist_ok=True)
    with (tree / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cpp_extension.load(
            f"commprof_{name}",
            [str(SOURCES[name])],
            extra_cflags=["-std=c++20", "-O1"],
            build_directory=str(tree),
        )


def _build(name: str) -> None:
    load(name)


if __name__ == "__main__":
    building = [multiprocessing.Process(target=_build, args=(name,)) for name in SOURCES]
    for process in building:
        process.start()
    for process in building:
        process.join()
    sys.exit(any(process.exitcode for process in building))
