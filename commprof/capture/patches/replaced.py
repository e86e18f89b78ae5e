"""Replaces functions of torch while capture runs, and restores them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

_NOTHING = object()
#: Replacements that ``Patches.remove`` left in place, and the functions that they replaced. A key
#: is the ``id()`` of the replacement.
_left: dict[int, tuple[Any, Any]] = {}


class Patches:
    """Replacements of functions, in place until :meth:`remove` is called."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replaces ``owner.name``; base classes of ``owner`` stay unchanged.

        If other code replaces ``owner.name`` later, :meth:`remove` leaves the name as it is.
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

        Restoring the original would make torch.compile recompile. So ``replacement`` must only call
        the original after :meth:`remove`, and while a compiler traces ``replacement``.
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
        """Like :meth:`on_remove`, but ``undo`` is not called if torch.compile was used.

        After ``undo``, torch.compile would have to recompile.
        """
        self._undo.append(lambda: None if _has_compiled() else undo())

    def remove(self) -> None:
        """Undoes the replacements, the last first; those "for compilers" may stay in place."""
        while self._undo:
            self._undo.pop()()


def original_of(function: Any) -> Any:
    """Returns the original of a kept replacement; returns any other ``function`` unchanged."""
    while id(function) in _left:
        function = _left[id(function)][1]
    return function


def _stand_in_file_of(function: Any, replacement: Any) -> None:
    """Gives ``replacement`` the file name and the line number of ``function``.

    ``torch.compile`` decides from the file name whether to trace a function. With another file
    name, it would compile the model differently.
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
    """Tells ``torch.compile`` not to compile ``function`` separately; returns ``function``.

    ``function`` can still become a part of a compiled caller's graph. While the caller is traced,
    ``torch.compiler.is_compiling()`` is True. If ``function`` replaces a function of torch, it must
    then only call the original, so that the graph stays the same.

    Args:
        function: any function; functions that are not written in Python are never compiled.
        callees: True to exclude also the functions that ``function`` calls.
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
