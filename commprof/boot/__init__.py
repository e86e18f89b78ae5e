"""Starts capture in a script that knows nothing of commprof.

Two doors lead here: ``sitecustomize.py`` beside this file, which a launcher puts first on
PYTHONPATH, and ``commprof.wrap``. Neither imports torch: the script does, when and if it wants.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

#: Names the directory for traces; without it nothing happens.
OUT_VARIABLE = "COMMPROF_OUT"
_TARGET = "torch.distributed.distributed_c10d"


def environment(directory: Path) -> dict[str, str]:
    """What to set so that every Python started with it, and its children, is captured."""
    first = str(Path(__file__).parent)
    rest = os.environ.get("PYTHONPATH")
    return {
        OUT_VARIABLE: str(directory.absolute()),
        "PYTHONPATH": first if not rest else os.pathsep.join((first, rest)),
    }


def arm(directory: str) -> None:
    """From now on the first ``init_process_group`` of this process starts capture."""
    if _TARGET in sys.modules:
        _patch(sys.modules[_TARGET], directory)
        return
    sys.meta_path.insert(0, _Finder(lambda module: _patch(module, directory)))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as Python would, once, and adds a step after it ran."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._then(module)

        loader.exec_module = exec_module


def _patch(c10d: ModuleType, directory: str) -> None:
    """Makes ``init_process_group`` start capture once it has succeeded."""
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _start(directory)
        return result

    for module in (c10d, sys.modules.get("torch.distributed")):
        if module is not None and getattr(module, "init_process_group", None) is original:
            module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _start(directory: str) -> None:
    """Starts capture; a failure is said in a line and the script goes on without."""
    from commprof.capture.profiler import active, profile
    from commprof.errors import CommprofError

    if active() is not None:
        return  # the script profiles itself, or made a second default group
    try:
        profile(directory, find_steps=True).start()  # the mode is in the environment
    except CommprofError as error:
        print(f"commprof: not recording: {error}", file=sys.stderr)
