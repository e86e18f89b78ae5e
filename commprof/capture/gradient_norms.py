"""Measures the norms of this rank's gradients in every n-th step, for the live metrics.

In a measured step, a hook of each parameter computes the L2 norm of the gradient before DDP
exchanges the gradient. A small file next to the trace holds the newest figures, and the time that
all measurements have cost.

Under GradScaler, the gradients are scaled. Of sharded parameters (FSDP), only this rank's shards
are measured.
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
    """Measures gradient norms with hooks of the parameters."""

    def __init__(self, every: int) -> None:
        """``every``: one of this many steps is measured; 0: no step."""
        self._every = every
        self._fd = -1
        self._undo: list[Callable[[], None]] = []
        self._hooks: list[Any] = []
        #: The first optimizer that updates; its parameters are measured.
        self._optimizer: weakref.ref[Any] | None = None
        self._norms: dict[int, torch.Tensor] = {}
        self._updates = 0
        self._cost_ns = 0
        self._failed = False

    def install(self, path: Path) -> None:
        """Starts counting steps, unless ``every`` is 0.

        Args:
            path: file for the newest figures. If it cannot be written, the figures are lost.
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
        if self._failed:
            return
        try:
            self._measure(parameter)
        except Exception as error:
            # Autograd is calling the hooks now, so the optimizer's next update removes them.
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
        self._failed = True
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"commprof: gradient norms are no longer measured: {what}", file=sys.stderr)

    def _take(self) -> None:
        """Writes the figures to the file. On a GPU, this waits for the backward pass."""
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
        """Overwrites the file with a text of fixed length: a reader finds old or new text."""
        finite = {
            key: value if abs(value) < float("inf") else None for key, value in figures.items()
        }
        text = json.dumps({**finite, "cost_s": round(self._cost_ns / 1e9, 6)})
        if self._fd >= 0 and len(text) < _FILE_BYTES:
            with suppress(OSError):
                os.pwrite(self._fd, text.ljust(_FILE_BYTES - 1).encode() + b"\n", 0)
