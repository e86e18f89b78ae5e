"""What others counted while capture ran: the kernel per network interface, DDP in its own log.

They stand in the trace beside commprof's records, for a report that compares the two.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from commprof.capture.recorder import Recorder

_COUNTERS = Path("/proc/self/net/dev")
#: Where the received and the sent bytes stand behind an interface's name.
_RECEIVED, _SENT = 0, 8
#: What is kept of DDP's log: its setup, and means over the iterations that it sampled, in ns.
_DDP_KEYS = (
    *("module_name", "backend_name", "bucket_sizes", "rebuilt_bucket_sizes", "iteration"),
    *("avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time"),
    *("avg_backward_compute_comm_overlap_time", "rebuilt_per_bucket_param_indices"),
)


class Witnesses:
    """Reads both at the begin and the end of a capture. Nothing of it stays after `stop`."""

    def __init__(self) -> None:
        self._models: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._undo: Callable[[], None] | None = None
        self._counting_from: dict[str, tuple[int, int]] | None = None
        self._counted: dict[str, tuple[int, int]] = {}
        self._begin_ns = 0

    def start(self) -> None:
        """Begins to count bytes and to note the DDP models that are called."""
        self._begin_ns = time.monotonic_ns()
        self._counted = {}
        self._counting_from = interface_bytes()
        self._note_models()

    def set_enabled(self, on: bool) -> None:
        """Counts no bytes while capture is off, whose collectives it does not see."""
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
        """Puts what was counted into the trace."""
        self.set_enabled(False)
        if self._undo is not None:
            self._undo()
        interfaces = {
            name: {"received_bytes": received, "sent_bytes": sent}
            for name, (received, sent) in self._counted.items()
        }
        closing = {
            "begin_monotonic_ns": self._begin_ns,
            "network_namespace": _namespace(),
            "interfaces": interfaces,
            "ddp_logs": [log for model in self._models if (log := ddp_log(model)) is not None],
        }
        self._models.clear()
        recorder.add_metadata(json.dumps({"witnesses": closing}))

    def _note_models(self) -> None:
        original = DistributedDataParallel.forward

        @wraps(original)
        def noting(model: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
            self._models.add(model)
            return original(model, *args, **kwargs)

        def undo() -> None:
            if DistributedDataParallel.forward is noting:
                DistributedDataParallel.forward = original

        DistributedDataParallel.forward = noting
        self._undo = undo


def interface_bytes() -> dict[str, tuple[int, int]]:
    """Bytes received and sent since boot, by interface of this process's network namespace.

    Empty where the kernel does not say.
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
    """What is kept of a model's own log, and its gradients' sizes; None where DDP gives no log."""
    try:
        log = model._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return None  # private to torch: it may go
    trained = (parameter for parameter in model.module.parameters() if parameter.requires_grad)
    return {
        **{key: log[key] for key in _DDP_KEYS if key in log},
        "parameter_bytes": [each.numel() * each.element_size() for each in trained],
        "sparse_modules": sum(getattr(each, "sparse", None) is True for each in model.modules()),
    }


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
