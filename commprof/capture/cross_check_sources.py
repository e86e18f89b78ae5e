"""Figures from other sources during capture: Linux's byte counts per interface, and DDP's log.

The figures are written to the trace, so that a report can compare them with commprof's records.
"""

from __future__ import annotations

import json
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
from commprof.ddp_parameters import made_with_bytes, reduced
from commprof.trace.run.processes import link_of

_COUNTERS = Path("/proc/self/net/dev")
_CLASS_NET = Path("/sys/class/net")
#: Indices of the received and the sent bytes in the columns that follow an interface's name.
_RECEIVED, _SENT = 0, 8
#: Keys that are copied from DDP's log: the setup of the DDP model, and mean times in ns over the
#: iterations that DDP sampled.
_DDP_KEYS = (
    *("module_name", "backend_name", "bucket_sizes", "rebuilt_bucket_sizes", "iteration"),
    *("avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time"),
    *("avg_backward_compute_comm_overlap_time", "rebuilt_per_bucket_param_indices"),
    *("broadcast_buffers", "has_sync_bn", "find_unused_parameters", "unused_parameter_size"),
    *("static_graph", "num_parameter_tensors", "bucket_cap_bytes", "gradient_as_bucket_view"),
)
#: Keys for the bytes of parameters that an iteration did not use: the value in the newest log, and
#: the largest and the smallest value in any log.
_UNUSED, _MOST_UNUSED = "unused_parameter_size", "most_unused_parameter_size"
_LEAST_UNUSED = "least_unused_parameter_size"
#: Numbers of forward passes from one read of a model's DDP log to the next. The first read is in
#: the first pass; the last number repeats. DDP updates its log in its first ten iterations, and
#: then in one of every hundred; reading the log takes longer than recording a step.
_PASSES_TO_NEXT_READ = (1, 1, 2, 4, 2, 90, 100)
#: Maximum number of models whose logs are kept. A report compares the log of a single model.
_MOST_MODELS = 32


@dataclass(slots=True)
class _Called:
    """A DDP model that was trained, with its latest log.

    The log is read from time to time, because the model may no longer exist when capture stops, for
    example if a function or a cross-validation loop made the model. If the model is deleted after
    four to ten iterations, the log may lack the last few iterations.
    """

    model: Callable[[], DistributedDataParallel | None]
    """Weak reference to the model."""
    log: dict[str, Any] | None = None
    passes_to_read: int = 1
    """Number of forward passes until the log is read next."""
    reads: int = 0
    """Number of forward passes in which the log was read."""

    def read_in_pass(self, model: DistributedDataParallel) -> None:
        """Reads the model's log in a forward pass, and notes when to read it next."""
        gaps = _PASSES_TO_NEXT_READ
        self.passes_to_read = gaps[min(self.reads, len(gaps) - 1)]
        self.reads += 1
        self.read(model)

    def read(self, model: DistributedDataParallel) -> None:
        """Reads DDP's log of the model; the parts that do not change are read only once."""
        before = self.log
        if before is None:
            self.log = ddp_log(model)
        elif (now := _log_now(model)) is not None:
            self.log = {**before, **now}
        if self.log is not None and _UNUSED in self.log:
            now_unused = self.log[_UNUSED]
            earlier = before or {}
            self.log[_MOST_UNUSED] = max(earlier.get(_MOST_UNUSED, 0), now_unused)
            self.log[_LEAST_UNUSED] = min(earlier.get(_LEAST_UNUSED, now_unused), now_unused)


class CrossCheckSources:
    """Reads interface counters when a capture begins and ends, and DDP's logs from time to time."""

    def __init__(self) -> None:
        self._models: weakref.WeakKeyDictionary[DistributedDataParallel, _Called] = (
            weakref.WeakKeyDictionary()
        )
        self._called: list[_Called] = []
        #: The model that was called last.
        self._latest: _Called | None = None
        self._counting_from: dict[str, tuple[int, int]] | None = None
        self._counted: dict[str, tuple[int, int]] = {}
        self._begin_ns = 0

    def start(self, recorder: Recorder) -> None:
        """Starts counting bytes, and writes the network namespace into the trace.

        The namespace is written now because ranks of the same network namespace share a host, and
        the trace of a killed rank must tell its host too.
        """
        self._begin_ns = time.monotonic_ns()
        _write(recorder, self._opening())
        self._counted = {}
        self._counting_from = interface_bytes()

    def set_enabled(self, on: bool) -> None:
        """Starts or stops counting bytes; bytes that pass while capture is off are not counted."""
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
        """Stops counting bytes, and writes the counts and DDP's logs into the trace."""
        self.set_enabled(False)
        interfaces = {
            name: {"received_bytes": received, "sent_bytes": sent}
            for name, (received, sent) in self._counted.items()
        }
        for model, called in self._models.items():
            called.read(model)
        closing = {
            **self._opening(),
            "interfaces": interfaces,
            "mtu_bytes": {name: mtu for name in interfaces if (mtu := _number(name, "mtu"))},
            "rated_mbit_per_s": {
                name: max(0, _number(name, "speed")) for name in interfaces if _leads_away(name)
            },
            "ddp_logs": [called.log for called in self._called if called.log is not None],
            "ddp_models": len(self._called),
        }
        self._models.clear()
        self._called.clear()
        self._latest = None
        _write(recorder, closing)

    def _opening(self) -> dict[str, Any]:
        """Returns the figures that are known when capture starts."""
        return {
            "begin_monotonic_ns": self._begin_ns,
            "network_namespace": link_of("/proc/self/ns/net"),
        }

    def models(self) -> list[DistributedDataParallel]:
        """Returns the DDP models that were trained and still exist."""
        found = (called.model() for called in self._called)
        return [model for model in found if model is not None]

    def note(self, model: DistributedDataParallel) -> None:
        """Notes a forward pass of a model that trains, or has trained before."""
        # Every step runs this: a model that is called again must cost few instructions.
        called = self._latest
        if called is None or called.model() is not model:
            called = self._entry(model)
            if called is None:
                return
            self._latest = called
        called.passes_to_read -= 1
        if called.passes_to_read == 0:
            called.read_in_pass(model)

    def _entry(self, model: DistributedDataParallel) -> _Called | None:
        """Returns a model's entry, made when the model first trains; None if it has no entry."""
        called = self._models.get(model)
        trains = model.training and torch.is_grad_enabled()
        if called is None and trains and len(self._called) < _MOST_MODELS:
            called = self._models[model] = _Called(weakref.ref(model))
            self._called.append(called)
        return called


def _write(recorder: Recorder, sources: dict[str, Any]) -> None:
    """Writes the figures into the trace, in place of any written before."""
    recorder.add_metadata(json.dumps({"cross_check_sources": sources}))


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
    """Reads a model's DDP log and gradient sizes; None if DDP gives no log.

    The log refers to gradients by indices, which were assigned when the DDP model was made. If
    parameters have been frozen or unfrozen since then, these indices no longer fit the sizes, so
    the sizes are left out.
    """
    log = _log_now(model)
    if log is None:
        return None
    sizes = [each.numel() * each.element_size() for _, each in reduced(model)]
    return {
        **log,
        "parameter_bytes": sizes if made_with_bytes(model) in (None, sum(sizes)) else [],
        "sparse_modules": sum(getattr(each, "sparse", None) is True for each in model.modules()),
    }


def _log_now(model: DistributedDataParallel) -> dict[str, Any] | None:
    try:
        log = model._get_ddp_logging_data()
        return {
            **{key: log[key] for key in _DDP_KEYS if key in log},
            "group_name": _group_name(model),
            "own_exchange": _own_exchange(model, log),
        }
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
        return None  # the log's functions are private to torch, and may be removed


def _group_name(model: DistributedDataParallel) -> str | None:
    """Returns c10d's name of the model's group; None if it has no name, like torchft's groups."""
    try:
        return str(model.process_group.group_name)
    except (RuntimeError, ValueError):
        return None


def _own_exchange(model: DistributedDataParallel, log: dict[str, Any]) -> str:
    """Returns the name of the hook or method that replaces DDP's all-reduce of its buckets.

    Empty if DDP's own all-reduce runs.
    """
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
