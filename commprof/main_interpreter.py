"""Checks for Python's main interpreter, because torch does not work in sub-interpreters."""

from __future__ import annotations

import functools
import importlib
from contextlib import suppress

#: CPython's module for sub-interpreters: its name from Python 3.13 on, and its earlier name.
_MODULES = ("_interpreters", "_xxsubinterpreters")


@functools.cache
def is_main_interpreter() -> bool:
    """True in the main interpreter, or if it is not known; False in a sub-interpreter.

    The result is cached, because this function may be called in every training step.
    """
    for name in _MODULES:
        with suppress(ImportError):
            interpreters = importlib.import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
    return True
