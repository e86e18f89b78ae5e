"""C++ extensions of the tests, built once and again when they change."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

BUILD = Path(__file__).parents[3] / "build"


def load(name: str, source: Path) -> Any:
    """Returns the module, to be loaded in a test's own process. Building takes a minute."""
    from torch.utils import cpp_extension

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja
    tree = BUILD / name
    tree.mkdir(parents=True, exist_ok=True)
    with (tree / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cpp_extension.load(
            f"commprof_{name}",
            [str(source)],
            extra_cflags=["-std=c++20", "-O1"],
            build_directory=str(tree),
        )
