"""Norms of this rank's own gradients, measured at a fixed interval of steps for the live metrics.

In a measured step, a hook of each parameter computes the L2 norm of the parameter's gradient as
soon as the gradient is accumulated, before DDP exchanges it. In other steps there are no hooks. A
small file next to the trace holds the newest figures and the training time that measuring has cost
so far.

If measuring fails, it ends with a line on stderr, and training goes on.

Under GradScaler these are the norms of scaled gradients; for sharded parameters (FSDP), the norms
of this rank's shards.
"""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from commprof.capture.optimizer_state import makes_state

_FILE_BYTES = 256


class GradientNorms:
    """Measures gradient norms with hooks, which :meth:`remove` removes."""

    def __init__(self, every: int) -> None:
        """Adds no hook yet; one step in ``every`` is measured, or none if ``every`` is 0."""
        self._every = every
        self._fd = -1
        self._undo: list[Callable[[], None]] = []
        self._hooks: list[Any] = []
        #: The optimizer whose parameters are measured: the first that updates.
        self._optimizer: weakref.ref[Any] | None = None
        self._norms: dict[int, torch.Tensor] = {}
        self._updates = 0
        self._cost_ns = 0
        self._failed = False

    def install(self, path: Path) -> None:
        """Starts counting steps, unless ``every`` is 0; the second step is the first measured one.

        Args:
            path: file for the newest figures; if it cannot be written, no figures are kept.
        """
        if not self._every:
            return
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o644)
        self._undo.append(register_optimizer_step_pre_hook(self._before_update).remove)

    def remove(self) -> None:
        """Removes all hooks."""
        while self._undo:
            self._undo.pop()()
        self._release()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if self._failed:
            self._release()
            return
        if makes_state():
            return
        try:
            self._count(optimizer)
        except Exception as error:
            self._give_up(error)
            self._release()

    def _count(self, optimizer: Any) -> None:
        first = self._optimizer() if self._optimizer is not None else None
        if first is None:
            self._optimizer = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        begin_ns = time.perf_counter_ns()
        measured = bool(self._hooks)
        if measured:
            self._take()
            self._release()
        if self._updates % self._every == 0:
            self._hook(optimizer)
        self._updates += 1
        if measured or self._hooks:
            self._cost_ns += time.perf_counter_ns() - begin_ns

    def _hook(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(self._accumulated)
                    self._hooks.append(hook)

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Computes a gradient's norm; later backward passes of the step overwrite it."""
        if self._failed:
            return
        try:
            self._measure(parameter)
        except Exception as error:
            # The hooks are removed only at the optimizer's update, as autograd is calling them now.
            self._give_up(error)

    def _measure(self, parameter: torch.Tensor) -> None:
        begin_ns = time.perf_counter_ns()
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse:
            local = getattr(gradient, "_local_tensor", gradient).detach()
            if local.is_complex():
                local = torch.view_as_real(local)
            self._norms[id(parameter)] = torch.linalg.vector_norm(local, dtype=torch.float32)
        self._cost_ns += time.perf_counter_ns() - begin_ns

    def _give_up(self, error: Exception) -> None:
        """Ends measuring after an error; the figures written last stay in the file."""
        self._failed = True
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"commprof: gradient norms are no longer measured: {what}", file=sys.stderr)

    def _take(self) -> None:
        """Writes the figures to the file; on a GPU this waits for the backward pass."""
        if not self._norms:
            return
        first = next(iter(self._norms.values()))
        norms = torch.stack([norm.to(first.device) for norm in self._norms.values()]).double()
        norm, variance = torch.stack(
            [torch.linalg.vector_norm(norms), norms.var(correction=0)]
        ).tolist()
        self._write({"step": self._updates, "norm": norm, "layer_variance": variance})

    def _release(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        self._norms.clear()

    def _write(self, figures: dict[str, float]) -> None:
        """Overwrites the file with text of fixed length: a reader finds the old or the new text."""
        finite = {
            key: value if abs(value) < float("inf") else None for key, value in figures.items()
        }
        text = json.dumps({**finite, "cost_s": round(self._cost_ns / 1e9, 6)})
        if self._fd >= 0 and len(text) < _FILE_BYTES:
            with suppress(OSError):
                os.pwrite(self._fd, text.ljust(_FILE_BYTES - 1).encode() + b"\n", 0)
