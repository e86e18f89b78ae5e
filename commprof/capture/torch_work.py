"""Records the times of work that torch does besides its collectives.

DDP copies buffers, and searches for unused parameters. FSDP copies parameters and gradients.
Objects are pickled for collectives. A DataLoader starts and ends worker processes. torch.save
writes files. torch.compile compiles functions. Anomaly detection slows backward passes. The times
of this work go into the trace when capture stops.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import dataloader

from commprof.capture.patches.replaced import Patches, original_of
from commprof.capture.recorder import Recorder

#: Maximum number of recorded time spans of each kind of work.
_MOST = 4096
#: Two time spans of the same kind become one if less than this time lies between them.
_SAME_NS = 20_000
#: torch.save closes its file right after writing it. Under load the thread may lose its core in
#: between, so writing and closing become one time span if less than this time lies between them.
_CLOSED_WITHIN_NS = 100_000_000


def _always(*_: Any) -> bool:
    return True


def _on_main_thread(*_: Any) -> bool:
    return threading.current_thread() is threading.main_thread()


def _searches(model: Any, *_: Any) -> bool:
    return bool(model.find_unused_parameters and not model.static_graph)


def _finds_anomalies(*_: Any) -> bool:
    return torch.is_anomaly_enabled()


def _opener(of: str) -> Any:
    """Returns torch.save's class that opens a file or a buffer; None if torch lacks the class."""
    return getattr(torch.serialization, f"_open_zipfile_writer_{of}", None)


_FSDP = "torch.distributed.fsdp"
#: None if torch lacks it.
_c10d = getattr(dist, "distributed_c10d", None)
_workers = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
_serialization = torch.serialization
#: Functions of torch whose calls are recorded. A row has the key in the trace's metadata, owner and
#: name of the function, and a condition for recording a call. ``_post_forward`` is the end of DDP's
#: forward pass, in which DDP may search for unused parameters.
_FUNCTIONS: tuple[tuple[str, Any, str, Callable[..., bool]], ...] = (
    ("ddp_buffer_syncs", DistributedDataParallel, "_sync_buffers", _always),
    ("ddp_searches", DistributedDataParallel, "_post_forward", _searches),
    ("object_pickles", _c10d, "_object_to_tensor", _always),
    ("object_unpickles", _c10d, "_tensor_to_object", _always),
    # Parts of torch.save. torch.save itself is not replaced, because some scripts pickle that
    # function.
    ("saves", _serialization, "_save", _on_main_thread),
    ("saves", _serialization, "_legacy_save", _on_main_thread),
    ("saves", _opener("file"), "__exit__", _on_main_thread),
    ("saves", _opener("buffer"), "__exit__", _on_main_thread),
    ("loader_worker_starts", _workers, "__init__", _always),
    ("loader_worker_stops", _workers, "_shutdown_workers", _always),
    # AutoPhases already replaces ``torch.autograd.backward``, which calls this function.
    ("anomaly_backwards", torch.autograd, "_engine_run_backward", _finds_anomalies),
)
#: Functions of modules that most scripts do not import. A row has key, module, class and name; the
#: class is "" for a function of the module. Of two rows with the same key, the first is for FSDP2
#: and the second for FSDP1. FSDP1 has no row for the gathers of forward passes, because its
#: function for them also does other work.
_LATER: tuple[tuple[str, str, str, str], ...] = (
    ("fsdp_reductions", f"{_FSDP}._fully_shard._fsdp_param_group", "", "foreach_reduce"),
    ("fsdp_reductions", f"{_FSDP}._runtime_utils", "", "_reduce_grad"),
    (
        *("fsdp_backward_gathers", f"{_FSDP}._fully_shard._fsdp_param_group"),
        *("FSDPParamGroup", "pre_backward"),
    ),
    ("fsdp_backward_gathers", f"{_FSDP}._runtime_utils", "", "_pre_backward_hook"),
    (
        *("fsdp_forward_gathers", f"{_FSDP}._fully_shard._fsdp_param_group"),
        *("FSDPParamGroup", "pre_forward"),
    ),
    ("full_tensors", "torch.distributed.tensor._api", "DTensor", "full_tensor"),
)
_traced = torch.compiler.is_dynamo_compiling


def _compilations(since_ns: int) -> list[tuple[int, int]]:
    """Returns begin and end of torch.compile's compilations, in ns of CLOCK_MONOTONIC.

    torch keeps the last 64 compilations. Compilations that ended before ``since_ns`` are left out.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    remembered: list[Any] = getattr(utils, "get_compilation_metrics", list)()
    since_epoch_ns = time.time_ns() - time.monotonic_ns()
    spans = []
    for metrics in remembered:
        begin_us, end_us = (getattr(metrics, f"{name}_time_us", None) for name in ("start", "end"))
        if isinstance(begin_us, int) and isinstance(end_us, int):
            spans.append((1000 * begin_us - since_epoch_ns, 1000 * end_us - since_epoch_ns))
    return sorted(span for span in spans if span[1] >= since_ns)


class TorchWork:
    """Records the times of torch's own work between :meth:`install` and :meth:`remove`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = Patches()
        self._installed = False
        self._installed_ns = 0
        self._spans: dict[str, list[tuple[int, int]]] = {}
        #: Rows of ``_LATER`` whose modules the script has not imported yet.
        self.pending: tuple[tuple[str, str, str, str], ...] = ()

    def install(self) -> None:
        """Starts recording; functions that torch lacks are left out."""
        self._spans, self._installed = {}, True
        self._installed_ns = time.monotonic_ns()
        for key, owner, name, counts in _FUNCTIONS:
            if hasattr(owner, name):
                self._note(key, owner, name, counts)
        self.pending = _LATER
        self.poll()

    def poll(self) -> None:
        """Starts recording functions of modules that were imported since the last call."""
        waiting = []
        for row in self.pending:
            key, module, of_class, name = row
            owner = sys.modules.get(module)
            if owner is None:
                waiting.append(row)
                continue
            owner = getattr(owner, of_class, None) if of_class else owner
            if hasattr(owner, name):
                self._note(key, owner, name, _always)
        self.pending = tuple(waiting)

    def remove(self) -> None:
        """Stops recording, and writes the times into the trace."""
        self._installed, self.pending = False, ()
        self._patches.remove()
        compiled = _compilations(self._installed_ns)
        spans, self._spans = {**self._spans, "compilations": compiled}, {}
        # If the disk is full, its last bytes are kept for the block that closes the trace.
        if not any(spans.values()) or self._recorder.stats().write_errno:
            return
        for key, times in spans.items():
            if times:
                begin, end = zip(*times, strict=True)
                noted = {"begin_ns": begin, "end_ns": end}
                self._recorder.add_metadata(json.dumps({key: noted}))

    def _note(self, key: str, owner: Any, name: str, counts: Callable[..., bool]) -> None:
        original = original_of(getattr(owner, name))
        spans = self._spans.setdefault(key, [])
        same_ns = _CLOSED_WITHIN_NS if name == "__exit__" else _SAME_NS

        @wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if _traced() or not self._installed or len(spans) >= _MOST or not counts(*args):
                return original(*args, **kwargs)
            begin_ns = time.monotonic_ns()
            try:
                return original(*args, **kwargs)
            finally:
                end_ns = time.monotonic_ns()
                if spans and 0 <= begin_ns - spans[-1][1] < same_ns:
                    spans[-1] = spans[-1][0], end_ns
                else:
                    spans.append((begin_ns, end_ns))

        self._patches.replace_for_compilers(owner, name, noted)
