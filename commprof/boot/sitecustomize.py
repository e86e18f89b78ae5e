"""First on PYTHONPATH of a script under ``commprof run``; hands on to what it shadows."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_shadowed() -> None:
    """Runs the sitecustomize that would have been found without ours."""
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _run_shadowed()
finally:
    _out = os.environ.get("COMMPROF_OUT")
    if _out:
        try:
            from commprof.boot import arm

            arm(_out)
        except ImportError as _error:
            print(f"commprof: not recording: {_error}", file=sys.stderr)
