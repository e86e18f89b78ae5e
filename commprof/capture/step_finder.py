"""Finds where the steps of a loop end if the script does not declare them.

An iteration has ended when the same parameters are updated again. So one optimizer leads: each of
its updates ends a step, even an update that GradScaler skips. Updates of other optimizers end no
steps, for example updates of a GAN's other network.

Training may move on to another optimizer, as in cross-validation. An optimizer that updates twice,
without an update of the leading optimizer in between, becomes the leading one. The first of these
two updates also ends a step if only the leading optimizer updated in the last iterations, and if
the other optimizer never updated between two updates of the leading one.

An update inside a backward pass counts when the pass has ended. An update inside GradScaler counts
when the scaler's step has ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from commprof.trace.schema import STEP_SKIPPED, STEP_UPDATED

#: The ``id()`` of an optimizer, and the ``id()`` of its first parameter.
_Key = tuple[int, int]


class StepFinder:
    """Finds where steps end, from the updates of optimizers."""

    def __init__(self, end_step: Callable[[int], None]) -> None:
        """``end_step`` is called with STEP_UPDATED or STEP_SKIPPED."""
        self._end_step: Callable[[int], None] | None = end_step
        self._turns = _Turns()
        #: Optimizers that are updating now, the outermost first.
        self._updating: list[object] = []
        #: Number of updates so far; only the outermost of nested updates are counted.
        self._updates = 0
        #: Optimizer that a GradScaler is stepping. All updates in the meantime count as updates of
        #: this optimizer.
        self._scaling: object = None
        #: Context that delays the end of a step until the context itself ends.
        self.whole = _Whole(self._end_now)

    def stop(self) -> None:
        """Stops looking for steps."""
        self._end_step = None

    def before_update(self, optimizer: object) -> None:
        """Called before an optimizer steps; only the outermost of nested updates is counted."""
        for place, known in enumerate(self._updating):
            # The optimizer is still in the list if its last update raised an exception.
            if known is optimizer:
                del self._updating[place:]
                break
        self._updating.append(optimizer)

    def after_update(self, optimizer: object) -> None:
        """Called after an optimizer has stepped."""
        outermost = bool(self._updating) and self._updating[0] is optimizer
        while self._updating and self._updating.pop() is not optimizer:
            pass
        if outermost:
            self._updates += 1
            self._updated(optimizer if self._scaling is None else self._scaling, STEP_UPDATED)

    @contextmanager
    def scaling(self, optimizer: object) -> Iterator[None]:
        """Context in which a GradScaler steps this optimizer, or skips the update."""
        updates = self._updates
        outer, self._scaling = self._scaling, optimizer
        with self.whole:
            try:
                yield
            finally:
                self._scaling = outer
            # If a wrapping optimizer calls GradScaler, the wrapping optimizer's update ends a step.
            if self._updates == updates and not self._updating:
                self._updated(optimizer, STEP_SKIPPED)

    def _updated(self, optimizer: object, found: int) -> None:
        if self._turns.ends_iteration(optimizer):
            self.whole.end(found)

    def _end_now(self, found: int) -> None:
        if self._end_step is not None:
            self._end_step(found)


class _Whole:
    """Context that delays a step's end until the context ends; it may be nested in itself."""

    def __init__(self, end: Callable[[int], None]) -> None:
        self._end_now = end
        self._depth = 0
        self._due: int | None = None

    def end(self, found: int) -> None:
        if self._depth:
            self._due = found
        else:
            self._end_now(found)

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._due is not None:
            due, self._due = self._due, None
            self._end_now(due)


class _Turns:
    """Tracks the leading optimizer, whose updates end the steps."""

    def __init__(self) -> None:
        self._leading: _Key | None = None
        #: The leading optimizer and its first parameter. If one of the two is deleted, the next
        #: optimizer that updates becomes the leading one.
        self._alive: tuple[weakref.ref[Any], ...] = ()
        #: Number of the leading optimizer's last updates that no other update separates.
        self._alone = 0
        #: Optimizers that have updated since the last update of the leading optimizer.
        self._others: set[_Key] = set()
        #: Optimizers that have ever updated between two updates of the leading optimizer.
        self._companions: set[_Key] = set()

    def ends_iteration(self, optimizer: object) -> bool:
        parameter = _first_parameter(optimizer)
        key = id(optimizer), id(parameter)
        if any(reference() is None for reference in self._alive):
            self._leading = None
        if key == self._leading:
            self._companions |= self._others
            self._alone = 1 if self._others else self._alone + 1
            self._others.clear()
            return True
        if self._leading is None or key in self._others:
            self._lead(key, optimizer, parameter)
            return True
        # If this optimizer took no part in the last iterations, it probably leads from now on.
        ends = self._alone > 1 and not self._others and key not in self._companions
        self._others.add(key)
        return ends

    def _lead(self, key: _Key, optimizer: object, parameter: object) -> None:
        self._leading = key
        self._alive = weakref.ref(optimizer), weakref.ref(parameter)
        self._alone = 1
        self._others.clear()
        self._companions.clear()


def _first_parameter(optimizer: Any) -> Any:
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            return parameter
    return optimizer
