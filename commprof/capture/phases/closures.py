"""An optimizer that computes forward and backward itself: ``optimizer.step(closure)``.

Lightning trains like that, and so does L-BFGS. What the closure does is no part of the
optimizer's phase.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from commprof.capture.recorder import Marker

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def outside(marker: Marker, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """The arguments of ``Optimizer.step``, with a closure that leaves ``marker`` while it runs.

    Args:
        marker: of the phase that the optimizer's step is in.
        args: the optimizer itself comes first.
        kwargs: by name.

    Returns:
        None where there is no closure.
    """
    if len(args) > 1 and callable(args[1]):
        return (args[0], _leaving(marker, args[1]), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _leaving(marker, kwargs["closure"])}
    return None


def _leaving(marker: Marker, closure: Callable[[], Any]) -> Callable[[], Any]:
    @wraps(closure)
    def left() -> Any:
        marker.end()
        try:
            return closure()
        finally:
            marker.begin()

    return left
