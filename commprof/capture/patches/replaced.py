"""Functions of torch's that capture replaces while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_NOTHING = object()
#: By identity what stayed in place after its capture, and what it replaced.
_left: dict[int, tuple[Any, Any]] = {}


class Patches:
    """Functions that were replaced, until :meth:`remove`."""

    def __init__(self) -> None:
        """Makes the list of patches; nothing is replaced yet."""
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replaces ``owner.name``; what ``owner`` only inherits stays as it is.

        If somebody else replaces it again meanwhile, :meth:`remove` leaves theirs alone.
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
        """As :meth:`replace`; stays in place where putting it back would make code compile again.

        So it must do nothing of its own after :meth:`remove`, nor where a compiler traces it. A
        later capture puts its own in the place of it.
        """
        before = original_of(vars(owner).get(name))
        if before is None:
            raise AttributeError(name)

        def undo() -> None:
            if vars(owner).get(name) is replacement and not _has_compiled():
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
        """Registers ``undo`` as :meth:`on_remove`, unless that would make code compile again."""
        self._undo.append(lambda: None if _has_compiled() else undo())

    def remove(self) -> None:
        """Restores everything, the last replacement first."""
        while self._undo:
            self._undo.pop()()


def original_of(function: Any) -> Any:
    """Returns what a replacement that stayed in place had replaced; else the function itself."""
    while id(function) in _left:
        function = _left[id(function)][1]
    return function


def _stand_in_file_of(function: Any, replacement: Any) -> None:
    """Lets the code of ``replacement`` name the file and first line of ``function``.

    ``torch.compile`` decides by the file of a function whether to trace it, to trace what calls
    it, or to leave it alone. With another file the same model has other frames and graph breaks.
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
    """Returns the function so that ``torch.compile`` leaves its own frame alone.

    Where a compiler traces a caller of it, it still goes through it: it must do nothing of its
    own there, which ``torch.compiler.is_compiling()`` tells.

    Args:
        function: any; what is not written in Python is never compiled.
        callees: whether what it calls is left alone too; otherwise that is compiled.
    """
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return function
    if hasattr(frames, "set_code_exec_strategy"):  # private to torch: it may go
        skip, usual = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        strategy = frames._FrameExecStrategy(skip, skip if callees else usual)
        frames.set_code_exec_strategy(code, strategy)
    return function
