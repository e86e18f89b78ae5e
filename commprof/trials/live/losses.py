"""The loss of each step, from what ``backward`` is called on."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


class Losses:
    """Adds up what the backward passes of a step begin with, where that is one number."""

    def __init__(self) -> None:
        self._step: list[torch.Tensor] = []
        #: Per step of the trial.
        self._steps: list[list[torch.Tensor]] = []
        self._undo: Callable[[], None] | None = None

    def start(self) -> None:
        """Begins to watch."""
        original = torch.autograd.backward

        @wraps(original)
        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                self._step.append(tensors.detach())
            return original(tensors, *args, **kwargs)

        def undo() -> None:
            if torch.autograd.backward is watched:
                torch.autograd.backward = original

        torch.autograd.backward = watched
        self._undo = undo

    def stop(self) -> None:
        """No longer watches."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def end_step(self, counts: bool) -> None:
        """A step ended; ``counts`` says whether it was one of the trial's."""
        if counts:
            # Values are read at the end: on a GPU it would wait for them.
            self._steps.append(self._step)
        self._step = []

    def values(self) -> list[float | None]:
        """Per step of the trial; None where no single number was differentiated."""
        sums = [sum(map(float, losses)) if losses else None for losses in self._steps]
        # JSON has no NaN; a loss that is not finite is no basis for a comparison either.
        return [x if x is not None and math.isfinite(x) else None for x in sums]
