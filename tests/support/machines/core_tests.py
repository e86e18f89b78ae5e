from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def tool(name: str) -> str:
    near = Path(sys.executable).parent / name
    found = str(near) if near.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"needs {name}: pip install {name}")
    return found


def run(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(sanitize: str, *targets: str) -> Path:
    cmake, ninja = tool("cmake"), tool("ninja")
    tree = ROOT / ("build/cpp" + f"-{sanitize}" * bool(sanitize))
    options = {
        "COMMPROF_TESTS": "ON",
        "COMMPROF_SANITIZE": sanitize,
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON",
        "CMAKE_MAKE_PROGRAM": ninja,
    }
    tree.mkdir(parents=True, exist_ok=True)
    # Two builds in one tree would disturb each other.
    with (tree / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        defines = [f"-D{name}={value}" for name, value in options.items()]
        run([cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja", *defines])
        run([cmake, "--build", str(tree), "-j", "2", *(["--target", *targets] if targets else [])])
    return tree
