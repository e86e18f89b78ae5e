"""First on PYTHONPATH of a recorded script; hands on to what it shadows."""

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


def _arm(directory: str) -> None:
    """Loads the package beside this file, under a name of its own: commprof may not be found."""
    path = os.path.join(_HERE, "__init__.py")
    spec = importlib.util.spec_from_file_location("_commprof_boot", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["_commprof_boot"] = module
        spec.loader.exec_module(module)
        module.pin()
        module.arm(directory)


try:
    _run_shadowed()
finally:
    _out = os.environ.get("COMMPROF_OUT")
    if _out:
        _arm(_out)
