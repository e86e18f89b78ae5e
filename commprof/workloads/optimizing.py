"""How weights are updated: an optimizer and its learning rate over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

Schedule = Callable[[float], float]
"""Share of the run that is done, 0 to 1, to a factor of the learning rate."""


@dataclass(frozen=True)
class OptimizerPlan:
    """An optimizer that a strategy makes over the parameters that it holds."""

    kind: type[Optimizer]
    """Name of a class of torch.optim."""
    options: Mapping[str, Any]
    """Its keyword arguments; `lr` among them."""
    schedule: Schedule
    """Schedule of the learning rate."""


def cosine(progress: float) -> float:
    """From 1 to 0 along half a cosine (Loshchilov & Hutter 2017, SGDR, without restarts)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def step_decay(progress: float) -> float:
    """A tenth after half of the run, a hundredth after three quarters (He et al. 2016, CIFAR)."""
    if progress < 0.5:
        return 1.0
    return 0.1 if progress < 0.75 else 0.01


@dataclass(frozen=True)
class LearningRate:
    """The rate of each step: base rate, scaled, warmed up, then along the schedule."""

    base: float
    """The optimizer's own `lr`."""
    schedule: Schedule
    """Over the steps behind the warm-up."""
    steps: int
    """Steps of the run."""
    scale: float = 1.0
    """Factor for larger batches (linear scaling rule: Goyal et al. 2017, arXiv 1706.02677)."""
    warmup_steps: int = 0
    """The rate grows in equal parts over so many steps, as in the same paper's gradual warm-up."""

    def at(self, step: int) -> float:
        """The rate of a step, counted from 0; behind the last step that of the run's end."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        behind = max(0, step - self.warmup_steps)
        span = max(1, self.steps - self.warmup_steps)
        return self.base * self.scale * warm * self.schedule(min(1.0, behind / span))
