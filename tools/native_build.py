"""The steps by which CMake builds the core, and the module that links it with torch.

As a script: builds the core, in silence, while torch is still being installed. An error is left to
the module's build, which takes the same steps again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.resolve()
TREES = ROOT / "build"
CORE = TREES / "core"
"""Fits every torch and every Python."""

REQUIRE_NATIVE = os.environ.get("COMMPROF_REQUIRE_NATIVE") == "1"


class NativeBuildError(Exception):
    """Why there is no C++ module: one line, then, if a build step failed, its output."""


def core_steps() -> list[list[str]]:
    """Commands that build the core's libraries in CORE."""
    return steps(ROOT, CORE, {})


def steps(source: Path, tree: Path, defines: dict[str, str]) -> list[list[str]]:
    """Commands that configure and build one CMake project.

    The tree is kept, so that the next build is incremental.

    Raises:
        NativeBuildError: there is no CMake or Ninja.
    """
    cmake = _tool("cmake")
    given = {
        "CMAKE_MAKE_PROGRAM": _tool("ninja"),
        # A user's newer compiler may warn more.
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON" if REQUIRE_NATIVE else "OFF",
        **defines,
    }
    options = [f"-D{name}={value}" for name, value in given.items()]
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))  # torch's own variable
    return [
        [cmake, *_fresh(source, tree), "-S", str(source), "-B", str(tree), "-G", "Ninja", *options],
        [cmake, "--build", str(tree), "-j", jobs],
    ]


def _tool(name: str) -> str:
    """This environment's own first: two versions of ninja on one tree rebuild all of it."""
    near = Path(sys.executable).parent / name
    found = str(near) if near.exists() else shutil.which(name)
    if found is None:
        raise NativeBuildError(f"{name} was not found; `pip install cmake ninja` brings it")
    return found


def _fresh(source: Path, tree: Path) -> list[str]:
    """CMake refuses a tree that was copied along with its sources."""
    cache = tree / "CMakeCache.txt"
    mine = f"CMAKE_HOME_DIRECTORY:INTERNAL={source}\n"
    return ["--fresh"] if cache.exists() and mine not in cache.read_text() else []


if __name__ == "__main__":
    for command in core_steps():
        subprocess.run(command, check=True, capture_output=True)
