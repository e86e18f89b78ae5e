"""CMake commands that build the core and the modules that link it.

As a script, builds the core while torch is being installed. The modules' build runs the same
commands again, and shows their errors.
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
"""Build directory of the core, which is the same for every torch and every Python."""

PLUGIN = CORE / "libnccl-profiler-commprof.so"
"""commprof's profiler plugin for NCCL, which is built with the core."""

REQUIRE_NATIVE = os.environ.get("COMMPROF_REQUIRE_NATIVE") == "1"


class NativeBuildError(Exception):
    """Reason why there is no C++ module: one line, then the output of a failed build step."""


def core_steps() -> list[list[str]]:
    """Returns the commands that build the core's libraries in CORE."""
    return steps(ROOT, CORE, {})


def steps(source: Path, tree: Path, defines: dict[str, str]) -> list[list[str]]:
    """Returns the commands that configure and build one CMake project.

    The tree is kept, so that the next build is incremental.

    Raises:
        NativeBuildError: CMake or Ninja was not found.
    """
    cmake = _tool("cmake")
    given = {
        "CMAKE_MAKE_PROGRAM": _tool("ninja"),
        # A user's newer compiler may have more warnings.
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON" if REQUIRE_NATIVE else "OFF",
        **defines,
    }
    options = [f"-D{name}={value}" for name, value in given.items()]
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))  # also read by torch's own build
    return [
        [cmake, *_fresh(source, tree), "-S", str(source), "-B", str(tree), "-G", "Ninja", *options],
        [cmake, "--build", str(tree), "-j", jobs],
    ]


def _tool(name: str) -> str:
    """Finds a program; prefers this environment, because another ninja would rebuild everything."""
    near = Path(sys.executable).parent / name
    found = str(near) if near.exists() else shutil.which(name)
    if found is None:
        raise NativeBuildError(f"{name} was not found; `pip install cmake ninja` installs it")
    return found


def _fresh(source: Path, tree: Path) -> list[str]:
    """Returns ``--fresh`` if the tree was made for another source directory: CMake would refuse."""
    cache = tree / "CMakeCache.txt"
    mine = f"CMAKE_HOME_DIRECTORY:INTERNAL={source}\n"
    return ["--fresh"] if cache.exists() and mine not in cache.read_text() else []


if __name__ == "__main__":
    for command in core_steps():
        subprocess.run(command, check=True, capture_output=True)
