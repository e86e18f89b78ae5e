"""Work that torch does beside its collectives and the phases of a step.

DDP copies buffers into one tensor before their broadcast, and back afterwards. Its search for
unused parameters visits each node of the autograd graph. FSDP copies parameters and gradients into
one tensor before its collectives, and back afterwards. Objects are pickled before their collectives
and unpickled after them. A DataLoader starts worker processes and ends them. The main thread
writes files by torch.save. torch.compile compiles. Anomaly detection slows backward passes. The
times of all this work go into the trace when capture stops.
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

#: Largest number of time spans that are kept for each kind of work.
_MOST = 4096
#: Two pieces of work of one kind with at most this time between them are noted as one. If a rank
#: unpickles the objects of all ranks, one after another, this is noted once.
_SAME_NS = 20_000


def _always(*_: Any) -> bool:
    return True


def _on_main_thread(*_: Any) -> bool:
    """True on the main thread; a save in a background thread is not noted."""
    return threading.current_thread() is threading.main_thread()


def _searches(model: Any, *_: Any) -> bool:
    """True if the call of ``model._post_forward`` searches for unused parameters."""
    return bool(model.find_unused_parameters and not model.static_graph)


def _finds_anomalies(*_: Any) -> bool:
    return torch.is_anomaly_enabled()


def _opener(of: str) -> Any:
    """The class by which torch.save opens and closes a file or buffer; None if torch lacks it."""
    return getattr(torch.serialization, f"_open_zipfile_writer_{of}", None)


_FSDP = "torch.distributed.fsdp"
#: None if torch lacks it.
_c10d = getattr(dist, "distributed_c10d", None)
_workers = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
_serialization = torch.serialization
#: Key in the trace's metadata, private function of torch (owner and name), and a condition for
#: noting its calls. ``_post_forward``, the end of DDP's forward pass, may search for unused
#: parameters.
_FUNCTIONS: tuple[tuple[str, Any, str, Callable[..., bool]], ...] = (
    ("ddp_buffer_syncs", DistributedDataParallel, "_sync_buffers", _always),
    ("ddp_searches", DistributedDataParallel, "_post_forward", _searches),
    ("object_pickles", _c10d, "_object_to_tensor", _always),
    ("object_unpickles", _c10d, "_tensor_to_object", _always),
    # The parts of torch.save. torch.save itself is not replaced: scripts pickle this function, to
    # call it in another process.
    # A file is closed right after it is written, so writing and closing are noted as one.
    ("saves", _serialization, "_save", _on_main_thread),
    ("saves", _serialization, "_legacy_save", _on_main_thread),
    ("saves", _opener("file"), "__exit__", _on_main_thread),
    ("saves", _opener("buffer"), "__exit__", _on_main_thread),
    ("loader_worker_starts", _workers, "__init__", _always),
    ("loader_worker_stops", _workers, "_shutdown_workers", _always),
    # The function by which backward passes run autograd's engine. ``torch.autograd.backward``
    # itself is replaced by AutoPhases.
    ("anomaly_backwards", torch.autograd, "_engine_run_backward", _finds_anomalies),
)
#: The same for functions of modules that this module does not import, because most scripts do not
#: use them: key, module, class ("" for a function of the module) and name. Of two rows with
#: the same key, the first is for FSDP2, the second for FSDP1. FSDP1 has no row for the gathers of
#: forward passes: its function for them also does other work.
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
    """Returns begin and end of the last compilations by torch.compile, in ns of CLOCK_MONOTONIC.

    torch remembers 64 compilations.

    Compilations that ended before ``since_ns``, for example in an earlier recording of the process,
    are left out.
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
    """Notes the times of torch's own work from :meth:`install` to :meth:`remove`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = Patches()
        self._installed = False
        self._installed_ns = 0
        self._spans: dict[str, list[tuple[int, int]]] = {}
        #: Rows of ``_LATER`` whose modules the script has not imported yet.
        self.pending: tuple[tuple[str, str, str, str], ...] = ()

    def install(self) -> None:
        """Starts to note work; if torch lacks a function, that kind of work is not noted."""
        self._spans, self._installed = {}, True
        self._installed_ns = time.monotonic_ns()
        for key, owner, name, counts in _FUNCTIONS:
            if hasattr(owner, name):
                self._note(key, owner, name, counts)
        self.pending = _LATER
        self.poll()

    def poll(self) -> None:
        """Starts to note the work of modules that the script has imported since the last call."""
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
        """Stops noting work, and writes the times into the trace."""
        self._installed, self.pending = False, ()
        self._patches.remove()
        compiled = _compilations(self._installed_ns)
        spans, self._spans = {**self._spans, "compilations": compiled}, {}
        # On a full disk, the last free bytes are left for the trace's closing block.
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

        @wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if _traced() or not self._installed or len(spans) >= _MOST or not counts(*args):
                return original(*args, **kwargs)
            begin_ns = time.monotonic_ns()
            try:
                return original(*args, **kwargs)
            finally:
                end_ns = time.monotonic_ns()
                if spans and 0 <= begin_ns - spans[-1][1] < _SAME_NS:
                    spans[-1] = spans[-1][0], end_ns
                else:
                    spans.append((begin_ns, end_ns))

        self._patches.replace_for_compilers(owner, name, noted)
