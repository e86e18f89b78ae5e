"""Waits for a collective by hand: ``work.get_future().wait()``, ``torch.futures.wait_all``.

The native module times a Work's ``wait``, but the future inside is torch's own and cannot be told
apart in C++. So its Python methods say who waits. What they return and raise stays theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from commprof import _native
from commprof.capture.patches.replaced import Patches

#: torch.futures.Future is derived of it; what a Work gives is one of these.
_Future = torch._C.Future
_COLLECT = "_collect_all"


class FutureWaits:
    """Replaces the methods that wait, and those that make a future of others."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._patches = Patches()

    def install(self) -> None:
        """Begins; does nothing without the native module, which knows the collectives."""
        native = _native.native
        if native is None:
            return
        self._patches.replace(_Future, "wait", _timed(_Future.wait, native.wait_future))
        self._patches.replace(_Future, "then", _followed(_Future.then, native.follow_futures))
        collect = getattr(torch._C, _COLLECT, None)  # private to torch: it may go
        if collect is not None:
            self._patches.replace(torch._C, _COLLECT, _gathered(collect, native.follow_futures))

    def remove(self) -> None:
        """Puts everything back."""
        self._patches.remove()


def _timed(original: Callable[..., Any], wait_future: Callable[[Any], None]) -> Any:
    @wraps(original)
    def wait(future: Any) -> Any:
        if not torch.compiler.is_compiling():
            wait_future(future)
        return original(future)

    return wait


def _followed(original: Callable[..., Any], follow: Callable[[Any, list[Any]], None]) -> Any:
    @wraps(original)
    def then(future: Any, callback: Any) -> Any:
        child = original(future, callback)
        if not torch.compiler.is_compiling():
            follow(child, [future])
        return child

    return then


def _gathered(original: Callable[..., Any], follow: Callable[[Any, list[Any]], None]) -> Any:
    @wraps(original)
    def collect_all(futures: list[Any]) -> Any:
        together = original(futures)
        if not torch.compiler.is_compiling():
            follow(together, futures)
        return together

    return collect_all
