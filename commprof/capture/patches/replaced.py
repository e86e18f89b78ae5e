"""Replaces functions of torch while capture runs, and restores them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

_NOTHING = object()
#: Replacements that ``Patches.remove`` left in place, by ``id(replacement)``: the replacement, and
#: the function that it replaced.
_left: dict[int, tuple[Any, Any]] = {}


class Patches:
    """Replacements of functions, in place until :meth:`remove` is called."""

    def __init__(self) -> None:
        """Makes the list of patches; nothing is replaced yet."""
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replaces ``owner.name`` on ``owner`` itself, not on the class it inherits from.

        If other code replaces ``owner.name`` later, :meth:`remove` leaves that in place.
        """
        before = original_of(vars(owner).get(name, _NOTHING))

        def undo() -> None:
            if vars(owner).get(name) is not replacement:
                return
            if before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, replacement)
        self._undo.append(undo)

    def replace_for_compilers(self, owner: Any, name: str, replacement: Any) -> None:
        """Replaces ``owner.name``; :meth:`remove` keeps the replacement if torch.compile was used.

        The name is replaced on ``owner`` itself, not on a class that ``owner`` inherits from.
        Restoring the original would make torch.compile recompile. So after :meth:`remove`, and
        while a compiler traces the replacement, the replacement must do nothing but call the
        original. A later capture puts a new replacement in place of a kept one.
        """
        before = original_of(inspect.getattr_static(owner, name))
        is_inherited = name not in vars(owner)

        def undo() -> None:
            if vars(owner).get(name) is replacement and not _has_compiled():
                if is_inherited:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
            else:
                _left[id(replacement)] = replacement, before

        _stand_in_file_of(before, replacement)
        setattr(owner, name, uncompiled(replacement))
        self._undo.append(undo)

    def on_remove(self, undo: Callable[[], None]) -> None:
        """Registers ``undo`` to be called by :meth:`remove`."""
        self._undo.append(undo)

    def on_remove_for_compilers(self, undo: Callable[[], None]) -> None:
        """Registers ``undo`` for :meth:`remove`, which skips it if torch.compile compiled anything.

        After ``undo``, torch.compile would have to recompile.
        """
        self._undo.append(lambda: None if _has_compiled() else undo())

    def remove(self) -> None:
        """Undoes everything, the last replacement first."""
        while self._undo:
            self._undo.pop()()


def original_of(function: Any) -> Any:
    """Returns the original of a replacement that ``Patches.remove`` kept; else ``function``."""
    while id(function) in _left:
        function = _left[id(function)][1]
    return function


def _stand_in_file_of(function: Any, replacement: Any) -> None:
    """Gives the code of ``replacement`` the file name and first line number of ``function``.

    ``torch.compile`` decides from a function's file whether to trace the function, to trace its
    caller, or to leave it alone. If the files differed, the model would get other graph breaks.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        replacement.__code__ = replacement.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
        )


def _has_compiled() -> bool:
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return getattr(frames, "FRAME_COUNTER", 0) > 0


def uncompiled(function: Any, callees: bool = False) -> Any:
    """Tells ``torch.compile`` not to compile ``function`` on its own; returns ``function``.

    The graph of a compiled caller still includes ``function``. While ``torch.compile`` traces this
    graph, ``torch.compiler.is_compiling()`` is True. If ``function`` replaces a function of torch,
    ``function`` must only call the original during tracing, so that the graph stays the same.

    Args:
        function: any function; functions that are not written in Python are never compiled.
        callees: True if the functions that ``function`` calls must not be compiled either.
    """
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return function
    if hasattr(frames, "set_code_exec_strategy"):  # private to torch: it may be removed
        skip, usual = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        strategy = frames._FrameExecStrategy(skip, skip if callees else usual)
        frames.set_code_exec_strategy(code, strategy)
    return function
