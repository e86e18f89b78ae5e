"""Tells whether this code runs in the main interpreter: torch works in no other."""

from __future__ import annotations

import functools
import importlib
from contextlib import suppress

#: Names of CPython's own module on interpreters: from Python 3.13 on, and before.
_MODULES = ("_interpreters", "_xxsubinterpreters")


@functools.cache
def is_main_interpreter() -> bool:
    """True in the main interpreter, or if Python cannot tell; False in a sub-interpreter.

    The answer is cached, because each use of a name such as `commprof.step` asks for it, and a
    script may use this name in every training step.
    """
    for name in _MODULES:
        with suppress(ImportError):
            interpreters = importlib.import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
    return True
