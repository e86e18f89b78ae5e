"""``torchrun -m commprof.wrap train.py ARGS``: runs an unchanged script and records it.

``-m package.module ARGS`` runs a module. Traces go to the directory in COMMPROF_OUT, or to
``commprof-trace``. Processes that the script starts are recorded too. A ``--local_rank=N`` that the
launcher (deepspeed, torch.distributed.launch) puts before the script is passed to the script.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import pkgutil
import runpy
import sys
from pathlib import Path
from types import ModuleType

from commprof.capture.boot import OUT_VARIABLE, arm, environment, explain
from commprof.launched import script_first

_USAGE = "usage: torchrun -m commprof.wrap [-m] SCRIPT_OR_MODULE [ARGS...]"


def main() -> None:
    """Runs the script in this process.

    ``sys.argv``, ``sys.path[0]`` and the exit code are the same as without this module.
    """
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(f"{_USAGE}\n\n{(__doc__ or '').strip()}")
        return
    sys.argv[1:] = script_first(sys.argv[1:])
    if len(sys.argv) < 2 or (sys.argv[1] == "-m" and len(sys.argv) < 3):
        sys.exit(_USAGE)
    if problem := _problem(sys.argv[1:3]):
        sys.exit(f"commprof.wrap: {problem}")
    os.environ.update(environment(Path(os.environ.get(OUT_VARIABLE) or "commprof-trace")))
    arm(os.environ[OUT_VARIABLE])
    explain(os.environ[OUT_VARIABLE], always=True)
    try:
        _become_script()
    except SystemExit as error:
        # Exit handlers do not see SystemExit. Without the call of exits(), a failed rank would seem
        # to have finished.
        ending = sys.modules.get("commprof.capture.ending")
        if ending is not None:
            ending.exits(error)
        raise


def _become_script() -> None:
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        _run_script(sys.argv[0])


def _run_script(path: str) -> None:
    """Runs a script as ``python path`` does."""
    if pkgutil.get_importer(path) is not None or path.endswith(".pyc"):
        # The path is a directory, an archive or a compiled file.
        runpy.run_path(path, run_name="__main__")
        return
    script = ModuleType("__main__")
    # Python keeps ".." in this path too, because ".." after a symbolic link leads elsewhere.
    absolute = os.path.join(os.getcwd(), path)
    vars(script).update(__file__=absolute, __cached__=None, __builtins__=builtins)
    code = compile(Path(path).read_bytes(), absolute, "exec", dont_inherit=True)
    sys.modules["__main__"] = script
    exec(code, vars(script))


def _problem(words: list[str]) -> str:
    """Returns why the script or module cannot be run; empty if it can."""
    if words[0] != "-m":
        found = Path(words[0]).exists()
        return "" if found else f"no script {words[0]!r}; for a module, put -m before it"
    try:
        top = words[1].partition(".")[0]  # finding a submodule would import its package
        sys.path[0] = os.getcwd()
        found = importlib.util.find_spec(top) is not None
    except ValueError:
        found = False
    return "" if found else f"no module {words[1]!r} is found from {os.getcwd()}"


if __name__ == "__main__":
    main()
