"""Runs the ``sitecustomize`` that this file shadows, then prepares capture in this process."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    try:
        _run_shadowed()
    finally:
        out = os.environ.get("COMMPROF_OUT")
        if out:
            _arm(out)


def _run_shadowed() -> None:
    import importlib.machinery
    import importlib.util

    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _arm(directory: str) -> None:
    import importlib.util

    # ``commprof`` may not be importable, so ``__init__.py`` is loaded by its path.
    path = os.path.join(_HERE, "__init__.py")
    spec = importlib.util.spec_from_file_location("_commprof_boot", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["_commprof_boot"] = module
        spec.loader.exec_module(module)
        module.pin()
        module.arm(directory)
        module.explain(directory)


try:
    _begin()
except KeyboardInterrupt:
    # Otherwise a Ctrl-C during the start of Python prints a fatal error and a traceback.
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
