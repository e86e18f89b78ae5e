"""Functions of torch's that capture replaces while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NOTHING = object()


class Patches:
    """What was replaced, until :meth:`remove`."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Puts it in the place of ``owner.name``; what ``owner`` only inherits stays as it is.

        If somebody else replaces it again meanwhile, :meth:`remove` leaves theirs alone.
        """
        # As it stands there: what `getattr` gives need not be a method any more.
        before = vars(owner).get(name, _NOTHING)

        def undo() -> None:
            if vars(owner).get(name) is not replacement:
                return
            if before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, replacement)
        self._undo.append(undo)

    def on_remove(self, undo: Callable[[], None]) -> None:
        """Calls ``undo`` at :meth:`remove`."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Puts everything back, the last first."""
        while self._undo:
            self._undo.pop()()
