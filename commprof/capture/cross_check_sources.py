"""Reads figures of other sources during capture: Linux's byte counters and DDP's log.

A report compares these figures with commprof's records.
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
#: Columns of received and sent bytes, counted from 0 after the interface's name.
_RECEIVED, _SENT = 0, 8
#: Keys that are copied from DDP's log. Times are means in ns over the iterations that DDP samples.
_DDP_KEYS = (
    *("module_name", "backend_name", "bucket_sizes", "rebuilt_bucket_sizes", "iteration"),
    *("avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time"),
    *("avg_backward_compute_comm_overlap_time", "rebuilt_per_bucket_param_indices"),
    *("broadcast_buffers", "has_sync_bn", "find_unused_parameters", "unused_parameter_size"),
    *("static_graph", "num_parameter_tensors", "bucket_cap_bytes", "gradient_as_bucket_view"),
)
#: DDP's key for the bytes of parameters that an iteration did not use. commprof adds two keys: for
#: the largest and the smallest value of all logs.
_UNUSED, _MOST_UNUSED = "unused_parameter_size", "most_unused_parameter_size"
_LEAST_UNUSED = "least_unused_parameter_size"
#: Numbers of forward passes between two reads of a model's DDP log; the last number repeats. DDP
#: updates its log in its first ten iterations, and then in every hundredth iteration. A read takes
#: longer than the recording of a step.
_PASSES_TO_NEXT_READ = (1, 1, 2, 4, 2, 90, 100)
_MOST_MODELS = 32


@dataclass(slots=True)
class _Called:
    """A trained DDP model and its latest log.

    The log is read from time to time, because the model may be deleted before capture stops.
    """

    model: Callable[[], DistributedDataParallel | None]
    """Weak reference to the model."""
    log: dict[str, Any] | None = None
    passes_to_read: int = 1
    """Number of forward passes until the log is read next."""
    reads: int = 0

    def read_in_pass(self, model: DistributedDataParallel) -> None:
        gaps = _PASSES_TO_NEXT_READ
        self.passes_to_read = gaps[min(self.reads, len(gaps) - 1)]
        self.reads += 1
        self.read(model)

    def read(self, model: DistributedDataParallel) -> None:
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
        self._latest: _Called | None = None
        self._counting_from: dict[str, tuple[int, int]] | None = None
        self._counted: dict[str, tuple[int, int]] = {}
        self._begin_ns = 0

    def start(self, recorder: Recorder) -> None:
        """Starts counting bytes, and writes the network namespace into the trace.

        The namespace identifies the host. It is written now, so that the trace of a killed rank
        has it.
        """
        self._begin_ns = time.monotonic_ns()
        _write(recorder, self._opening())
        self._counted = {}
        self._counting_from = interface_bytes()

    def set_enabled(self, on: bool) -> None:
        """Starts or stops counting bytes."""
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
        return {
            "begin_monotonic_ns": self._begin_ns,
            "network_namespace": link_of("/proc/self/ns/net"),
        }

    def models(self) -> list[DistributedDataParallel]:
        """Returns the DDP models that were trained and still exist."""
        found = (called.model() for called in self._called)
        return [model for model in found if model is not None]

    def note(self, model: DistributedDataParallel) -> None:
        """Counts a forward pass of a DDP model, and sometimes reads the model's log."""
        # This runs in every step, so it must be fast if the model is the same as before.
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
        called = self._models.get(model)
        trains = model.training and torch.is_grad_enabled()
        if called is None and trains and len(self._called) < _MOST_MODELS:
            called = self._models[model] = _Called(weakref.ref(model))
            self._called.append(called)
        return called


def _write(recorder: Recorder, sources: dict[str, Any]) -> None:
    recorder.add_metadata(json.dumps({"cross_check_sources": sources}))


def interface_bytes() -> dict[str, tuple[int, int]]:
    """Returns each interface's received and sent bytes since boot; empty if they are unknown."""
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
    """Reads a model's DDP log and the sizes of its gradients; None if DDP gives no log.

    The sizes are left out if parameters were frozen or unfrozen after the DDP model was made. The
    log's indices of gradients, which DDP assigned when the model was made, then do not fit the
    sizes.
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
        return None  # the method is private to torch, and may be removed


def _group_name(model: DistributedDataParallel) -> str | None:
    try:
        return str(model.process_group.group_name)
    except (RuntimeError, ValueError):
        return None  # torchft's groups have no name


def _own_exchange(model: DistributedDataParallel, log: dict[str, Any]) -> str:
    """Returns what replaces DDP's all-reduce of its buckets; empty if nothing does."""
    if hook := log.get("comm_hook"):
        return f"the communication hook {hook}"
    if getattr(model, "mixed_precision", None) is not None:
        return "DDP's mixed precision"
    if getattr(model, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params"
    return ""


def _number(interface: str, name: str) -> int:
    try:
        return int((_CLASS_NET / interface / name).read_text())
    except (OSError, ValueError):
        return 0


def _leads_away(interface: str) -> bool:
    if interface == "lo" or (_CLASS_NET / interface / "bridge").exists():
        return False
    try:
        return bool(interface_address(interface))
    except OSError:
        return False
