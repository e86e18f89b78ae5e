"""Saves the state that a training step changes in a process, and restores it bit for bit."""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Tensors = list[tuple[torch.Tensor, torch.Tensor]]


class Trainables:
    """All modules, optimizers, schedulers and scalers of this process.

    They are found once, with Python's garbage collector. So the script need not name them.
    """

    def __init__(self, further: Sequence[Any] = ()) -> None:
        """Finds the objects of this process, and adds ``further`` objects.

        Each further object must have ``state_dict`` and ``load_state_dict``.
        """
        objects = alive((nn.Module, Optimizer, LRScheduler, GradScaler))
        self.modules = [item for item in objects if isinstance(item, nn.Module)]
        self.optimizers = [item for item in objects if isinstance(item, Optimizer)]
        scalers = [item for item in objects if isinstance(item, GradScaler) and item.is_enabled()]
        self.scalers: list[Any] = scalers
        schedulers = [item for item in objects if isinstance(item, LRScheduler)]
        self.others: list[Any] = [*schedulers, *scalers, *further]

    def keep(self) -> Snapshot:
        """Takes a snapshot of the training state."""
        return Snapshot(self)


class Snapshot:
    """A copy of the training state, taken between steps. It can be restored once.

    It covers modules with their gradients, optimizers, learning-rate schedulers, gradient scalers,
    objects that the user named, and the random generators of torch (CPU and CUDA), NumPy and
    Python. It does not cover the position in the data.
    """

    def __init__(self, trainables: Trainables) -> None:
        """Copies the state."""
        self._trainables = trainables
        # FSDP2 modules may stay gathered after backward. Then only the optimizers refer to the
        # sharded parameters.
        tensors = list(
            _unique([*_tensors_of(trainables.modules), *_trained(trainables.optimizers)])
        )
        self._tensors: Tensors = [(one, _copied(one)) for one in tensors]
        self._gradients = [
            (one, one.grad, None if one.grad is None else _copied(one.grad))
            for one in tensors
            if one.is_leaf and one.requires_grad
        ]
        self._optimizers = [_OptimizerState(one) for one in trainables.optimizers]
        self._others = [(one, copy.deepcopy(one.state_dict())) for one in trainables.others]
        self._scalers = [
            (one, copy.deepcopy(one._per_optimizer_states)) for one in trainables.scalers
        ]
        self._generators = _Generators()

    @torch.no_grad()
    def restore(self) -> None:
        """Restores the state. Parameters and buffers keep their place in memory."""
        for tensor, copied in self._tensors:
            tensor.copy_(copied)
        for parameter, gradient, copied in self._gradients:
            parameter.grad = gradient
            if gradient is not None and copied is not None:
                gradient.copy_(copied)
        for other, state in self._others:
            other.load_state_dict(state)
        for scaler, per_optimizer in self._scalers:
            scaler._per_optimizer_states = per_optimizer
        # Schedulers set learning rates, so optimizers are restored after the schedulers.
        for optimizer in self._optimizers:
            optimizer.restore()
        self._generators.restore()


class _OptimizerState:
    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {
            key: {name: (value, _copied(value)) for name, value in values.items()}
            if isinstance(values, dict)
            else (values, _copied(values))
            for key, values in optimizer.state.items()
        }
        self._groups = [
            {name: (value, _copied(value)) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    def restore(self) -> None:
        state = self._optimizer.state
        for key in [key for key in state if key not in self._state]:
            del state[key]
        for key, copied in self._state.items():
            if isinstance(copied, dict):
                _refill(state.setdefault(key, {}), copied, ())
            else:
                state[key] = _put_back(*copied)
        for group, copied in zip(self._optimizer.param_groups, self._groups, strict=True):
            _refill(group, copied, ("params",))


class _Generators:
    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _refill(values: dict[Any, Any], kept: dict[Any, tuple[Any, Any]], stay: Iterable[str]) -> None:
    """Restores a dictionary's values, and deletes names that were added after the snapshot.

    kept: name -> original value and its copy. stay: names that are never deleted.
    """
    for name in [name for name in values if name not in kept and name not in stay]:
        del values[name]
    for name, (original, copied) in kept.items():
        values[name] = _put_back(original, copied)


def _put_back(original: Any, copied: Any) -> Any:
    """Restores a tensor in place, because other objects may refer to it, and returns the tensor.

    For other values, and for a tensor whose shape has changed, ``copied`` is returned.
    """
    if isinstance(original, torch.Tensor) and original.shape == copied.shape:
        original.copy_(copied)
        return original
    return copied


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _tensors_of(modules: Iterable[nn.Module]) -> Iterable[torch.Tensor]:
    for module in modules:
        for tensors in (module._parameters, module._buffers):
            yield from (tensor for tensor in tensors.values() if tensor is not None)


def _trained(optimizers: Iterable[Optimizer]) -> Iterable[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _unique(tensors: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    seen: set[int] = set()
    for tensor in tensors:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def alive(kinds: tuple[type, ...]) -> list[Any]:
    """Returns all live objects of these types in this process."""
    # isinstance() could run code of a proxy object (its __class__), so type() is used.
    return [item for item in gc.get_objects() if issubclass(type(item), kinds)]
