"""Where the steps of a loop end that does not say so itself.

Every update of the first optimizer seen ends a step, and so does an update of it that
GradScaler left out. An update inside a backward pass (an optimizer per parameter) or inside
GradScaler counts when that is over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from commprof.trace.schema import STEP_SKIPPED, STEP_UPDATED

_Ref = weakref.ref[object] | None


class StepFinder:
    """Told of optimizers and scalers; tells when a step ended, and how it was found."""

    def __init__(self, end_step: Callable[[int], None]) -> None:
        """``end_step`` takes STEP_UPDATED or STEP_SKIPPED."""
        self._end_step: Callable[[int], None] | None = end_step
        self._first: _Ref = None
        self._updates = 0
        #: The optimizer, or wrapper of it, that a GradScaler steps in place of the first.
        self._scaled: _Ref = None
        self._scaling: object = None
        self._depth = 0
        self._due: int | None = None

    def stop(self) -> None:
        """No more steps are looked for."""
        self._end_step = None

    def before_update(self, optimizer: object) -> None:
        """The first to begin is the first: of nested ones the outermost."""
        scaled = _of(self._scaled)
        if _of(self._first) is None and (scaled is None or scaled is self._scaling):
            self._first = weakref.ref(optimizer)

    def after_update(self, optimizer: object) -> None:
        """An optimizer has stepped."""
        if _of(self._first) is optimizer:
            self._updates += 1
            self._end(STEP_UPDATED)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """A step that ends inside ends when this does."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._due is not None:
                due, self._due = self._due, None
                self._end(due)

    @contextmanager
    def scaling(self, optimizer: object) -> Iterator[None]:
        """A GradScaler steps this optimizer, or leaves the update out."""
        updates = self._updates
        outer, self._scaling = self._scaling, optimizer
        if _of(self._first) is None and _of(self._scaled) is None:
            self._scaled = weakref.ref(optimizer)
        with self.whole():
            try:
                yield
            finally:
                self._scaling = outer
            if self._updates > updates:
                self._scaled = weakref.ref(optimizer)
            elif any(optimizer is _of(known) for known in (self._first, self._scaled)):
                self._end(STEP_SKIPPED)

    def _end(self, found: int) -> None:
        if self._depth:
            self._due = found
        elif self._end_step is not None:
            self._end_step(found)


def _of(reference: _Ref) -> object:
    return reference() if reference is not None else None
