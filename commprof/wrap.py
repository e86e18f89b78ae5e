"""``torchrun -m commprof.wrap train.py ARGS``: runs a script unchanged, recorded.

``-m package.module ARGS`` runs a module. Traces go to the directory in COMMPROF_OUT, or to
``commprof-trace``. Processes that the script starts itself are recorded too.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from commprof.boot import OUT_VARIABLE, arm, environment


def main() -> None:
    """Becomes the script: its arguments, its path, its exit."""
    if len(sys.argv) < 2 or (sys.argv[1] == "-m" and len(sys.argv) < 3):
        sys.exit("usage: torchrun -m commprof.wrap [-m] SCRIPT_OR_MODULE [ARGS...]")
    os.environ.update(environment(Path(os.environ.get(OUT_VARIABLE, "commprof-trace"))))
    arm(os.environ[OUT_VARIABLE])
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
