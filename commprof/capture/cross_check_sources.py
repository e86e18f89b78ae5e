"""Figures from other sources during capture: the kernel's bytes per interface, and DDP's own log.

The figures are written to the trace, so that a report can compare them with commprof's records.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from commprof.address import interface_address
from commprof.capture.recorder import Recorder

_COUNTERS = Path("/proc/self/net/dev")
_CLASS_NET = Path("/sys/class/net")
#: Columns of the received and the sent bytes after an interface's name.
_RECEIVED, _SENT = 0, 8
#: Keys that are kept of DDP's log: its setup, and means over the iterations it sampled, in ns.
_DDP_KEYS = (
    *("module_name", "backend_name", "bucket_sizes", "rebuilt_bucket_sizes", "iteration"),
    *("avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time"),
    *("avg_backward_compute_comm_overlap_time", "rebuilt_per_bucket_param_indices"),
)
#: DDP updates its log in its first ten iterations, and then in one of every hundred. It is read
#: after these of the first ones, because reading takes longer than recording a step.
_FIRST_READS, _UPDATED_EVERY = frozenset((0, 1, 2, 4, 8, 10)), 100
#: Maximum number of models whose logs are kept. A report compares the log of a single model.
_MOST_MODELS = 32


@dataclass
class _Called:
    """A DDP model that was trained, with its latest log."""

    iterations: int = 0
    log: dict[str, Any] | None = None

    def iterate(self, model: DistributedDataParallel) -> None:
        """Counts a forward pass, and reads DDP's log if the pass may have updated it.

        Reading it when capture stops may be too late: a model made in a function, or one of several
        in a cross-validation, may be gone by then. If the model is gone after four to ten
        iterations, the log may lack the last few of these.
        """
        if self.iterations in _FIRST_READS or self.iterations % _UPDATED_EVERY == 0:
            self.read(model)
        self.iterations += 1

    def read(self, model: DistributedDataParallel) -> None:
        """Reads DDP's log of the model; the parts that do not change are read only once."""
        if self.log is None:
            self.log = ddp_log(model)
        elif (now := _log_now(model)) is not None:
            self.log = {**self.log, **now}


class CrossCheckSources:
    """Reads interface counters and DDP's logs at the beginning and end of a capture."""

    def __init__(self) -> None:
        self._models: weakref.WeakKeyDictionary[DistributedDataParallel, _Called] = (
            weakref.WeakKeyDictionary()
        )
        self._called: list[_Called] = []
        #: The model that was called last, if it is still alive, and its entry in ``_models``.
        self._latest: tuple[Callable[[], DistributedDataParallel | None], _Called] | None = None
        self._counting_from: dict[str, tuple[int, int]] | None = None
        self._counted: dict[str, tuple[int, int]] = {}
        self._begin_ns = 0

    def start(self) -> None:
        """Starts counting bytes."""
        self._begin_ns = time.monotonic_ns()
        self._counted = {}
        self._counting_from = interface_bytes()

    def set_enabled(self, on: bool) -> None:
        """Stops counting bytes while capture is off: collectives are not recorded then either."""
        if on == (self._counting_from is not None):
            return
        now = interface_bytes()
        if on:
            self._counting_from = now
            return
        before, self._counting_from = self._counting_from or {}, None
        for name, (received, sent) in now.items():
            if name in before:
                more = received - before[name][0], sent - before[name][1]
                kept = self._counted.get(name, (0, 0))
                self._counted[name] = kept[0] + more[0], kept[1] + more[1]

    def stop(self, recorder: Recorder) -> None:
        """Stops, and writes the counts and logs into the trace."""
        self.set_enabled(False)
        interfaces = {
            name: {"received_bytes": received, "sent_bytes": sent}
            for name, (received, sent) in self._counted.items()
        }
        for model, called in self._models.items():
            called.read(model)
        closing = {
            "begin_monotonic_ns": self._begin_ns,
            "network_namespace": _namespace(),
            "interfaces": interfaces,
            "mtu_bytes": {name: mtu for name in interfaces if (mtu := _number(name, "mtu"))},
            "rated_mbit_per_s": {
                name: max(0, _number(name, "speed")) for name in interfaces if _leads_away(name)
            },
            "ddp_logs": [called.log for called in self._called if called.log is not None],
        }
        self._models.clear()
        self._called.clear()
        self._latest = None
        recorder.add_metadata(json.dumps({"cross_check_sources": closing}))

    def note(self, model: DistributedDataParallel) -> None:
        """Notes a model's forward pass, except in evaluation, which DDP's log does not count."""
        if not (model.training and torch.is_grad_enabled()):
            return
        latest = self._latest
        if latest is not None and latest[0]() is model:
            latest[1].iterate(model)
            return
        called = self._models.get(model)
        if called is None:
            if len(self._called) == _MOST_MODELS:
                return
            called = self._models[model] = _Called()
            self._called.append(called)
        self._latest = weakref.ref(model), called
        called.iterate(model)


def interface_bytes() -> dict[str, tuple[int, int]]:
    """Returns the bytes received and sent since boot, by interface of this network namespace.

    Empty if the kernel's counters cannot be read.
    """
    try:
        lines = _COUNTERS.read_text().splitlines()[2:]
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, numbers = line.partition(":")
        values = numbers.split()
        found[name.strip()] = int(values[_RECEIVED]), int(values[_SENT])
    return found


def ddp_log(model: DistributedDataParallel) -> dict[str, Any] | None:
    """Reads a model's DDP log and gradient sizes; None if DDP gives no log."""
    log = _log_now(model)
    if log is None:
        return None
    trained = (parameter for parameter in model.module.parameters() if parameter.requires_grad)
    return {
        **log,
        "parameter_bytes": [each.numel() * each.element_size() for each in trained],
        "sparse_modules": sum(getattr(each, "sparse", None) is True for each in model.modules()),
    }


def _log_now(model: DistributedDataParallel) -> dict[str, Any] | None:
    try:
        log = model._get_ddp_logging_data()
        return {
            **{key: log[key] for key in _DDP_KEYS if key in log},
            "group_name": str(model.process_group.group_name),
            "own_exchange": _own_exchange(model, log),
        }
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
        return None  # private to torch: it may be removed


def _own_exchange(model: DistributedDataParallel, log: dict[str, Any]) -> str:
    """Returns the name of what replaces DDP's all-reduce of its buckets; empty if nothing does."""
    if hook := log.get("comm_hook"):
        return f"the communication hook {hook}"
    if getattr(model, "mixed_precision", None) is not None:
        return "DDP's mixed precision"
    if getattr(model, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params"
    return ""


def _number(interface: str, name: str) -> int:
    """Reads a number that the kernel gives for an interface; 0 if it gives none."""
    try:
        return int((_CLASS_NET / interface / name).read_text())
    except (OSError, ValueError):
        return 0


def _leads_away(interface: str) -> bool:
    """True if the interface has an IPv4 address and is neither loopback nor a bridge."""
    if interface == "lo" or (_CLASS_NET / interface / "bridge").exists():
        return False
    try:
        return bool(interface_address(interface))
    except OSError:
        return False


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
