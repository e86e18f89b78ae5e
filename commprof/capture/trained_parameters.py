"""Finds the parameters that this rank trains, and warns if no gradients are exchanged.

The first updates of the optimizers show which parameters are trained. The total size of these
parameters goes into the trace, and the report compares the size with the exchanged bytes. If the
parameters are in no DDP model and not sharded, a thread looks for exchanges in this rank's trace.
If there are none, one rank of the job prints a warning.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof import invocation
from commprof.capture.job.metadata import rank_and_world_size
from commprof.capture.job.store_links import default_store
from commprof.capture.recorder import Recorder
from commprof.ddp_parameters import made_with_bytes, reduced
from commprof.text import counted, in_bytes
from commprof.trace.exchanged import MOST_MODELS, Exchanged, exchanged_by, exchanged_in_summary
from commprof.trace.reader import read_trace

#: Number of examined updates, of all optimizers together.
_UPDATES = 10
#: If there are more untrained modules than this, none is named. The report advises to freeze the
#: named modules, and freezing only some modules would not help.
_MOST_MODULES = 8
#: The trace is read this many seconds after the last examined update, when the records of all
#: exchanges are written.
_WRITTEN_S = 0.5
#: Libraries that communicate outside of torch.distributed, by the names of their modules.
_OTHER_LIBRARIES = {
    "horovod": "Horovod",
    "mpi4py.MPI": "mpi4py",
    "hivemind": "hivemind",
    "byteps": "BytePS",
    "bagua": "Bagua",
    "cupy.cuda.nccl": "CuPy's NCCL",
    "cupyx.distributed": "cupyx.distributed",
    "ray.util.collective": "ray.util.collective",
    "torchcomms": "torchcomms",
    "torchft": "torchft",
    "deepspeed.comm.ccl": "DeepSpeed's own communication",
    "apex.contrib.nccl_p2p": "Apex's NCCL",
    "transformer_engine": "Transformer Engine",
}


class TrainedParameters:
    """Records which parameters this rank trains in its first updates."""

    def __init__(
        self,
        recorder: Recorder,
        models: Callable[[], Iterable[DistributedDataParallel]],
        flat: Callable[[], bool],
    ) -> None:
        """Makes an object that records nothing before :meth:`install`.

        Args:
            recorder: recorder of the trace.
            models: returns the DDP models that were trained so far.
            flat: returns True if FSDP1 has run a forward pass of training.
        """
        self._recorder = recorder
        self._models = models
        self._flat = flat
        self._looks = False
        self._path = Path()
        self._updates = 0
        #: Trained parameters by their ``id()``; these references keep the ids from being reused.
        self._trained: dict[int, torch.Tensor] = {}
        #: For each update, the ``id()`` of each parameter that the update trained.
        self._by_update: list[set[int]] = []
        #: For each DDP model, a parameter and the parameter's gradient at the last update.
        self._gradients: list[tuple[torch.Tensor, weakref.ref[torch.Tensor]]] = []
        #: For each update, the ``id()`` of each parameter in ``_gradients`` that had this gradient.
        self._kept_by_update: list[set[int]] = []

    def install(self, path: Path) -> None:
        """Starts examining updates; ``path`` is the path of the trace."""
        self._path, self._updates, self._trained, self._looks = path, 0, {}, True
        self._by_update, self._gradients, self._kept_by_update = [], [], []

    def remove(self) -> None:
        """Stops examining updates, and writes the trained parameters to the trace."""
        if not self._looks:
            return
        self._looks = False
        try:
            self._write()
        except Exception as error:
            _complain(error)

    def before_update(self, optimizer: Any) -> None:
        """Records the parameters that an optimizer is about to update.

        Updates inside a compiled graph are not recorded, because a hook must not become a part of
        the graph. No hook may be added or removed while a job trains: torch.compile would then
        compile the job's optimizers again.
        """
        if not self._looks:
            return
        try:
            now = {
                id(parameter): parameter
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.grad is not None
            }
            self._trained.update(now)
            self._by_update.append(set(now))
            self._kept_by_update.append(self._kept_gradients())
            self._updates += 1
            if self._updates == 1:
                self._write()
            elif self._updates >= _UPDATES:
                self._looks = False
                if self._write():
                    self._check()
        except Exception as error:
            self._looks = False
            _complain(error)

    def _kept_gradients(self) -> set[int]:
        """Finds the parameters in ``_gradients`` whose gradient is still in the same tensor.

        Returns the ``id()`` of each of these parameters, and updates ``_gradients``. If a script
        sets gradients to None, the next backward pass makes new tensors.
        """
        unchanged = {
            id(p) for p, grad in self._gradients if p.grad is not None and grad() is p.grad
        }
        self._gradients = []
        models = list(self._models())
        if not 1 < len(models) <= MOST_MODELS:
            return unchanged
        for model in models:
            parameter = next((p for p in model.parameters() if p.grad is not None), None)
            if parameter is not None and parameter.grad is not None:
                self._gradients.append((parameter, weakref.ref(parameter.grad)))
        return unchanged

    def _write(self) -> bool:
        """Writes the size of the trained parameters into the trace.

        Returns True if trained parameters exist, but none is in a DDP model or sharded.
        """
        if not self._trained:
            return False
        own = {key: _bytes(parameter) for key, parameter in self._trained.items()}
        trained = set(own)
        by_ddp: set[int] = set()
        ignored: set[int] = set()
        untrained: list[str] = []
        of_models: list[dict[int, int]] = []
        model_bytes: list[int] = []
        unfrozen_bytes = 0
        for model in self._models():
            untrained += untrained_modules(model, trained)
            of_models.append({id(parameter): _bytes(parameter) for _, parameter in reduced(model)})
            chosen = set(of_models[-1])
            made_with = made_with_bytes(model)
            most = math.inf if made_with is None else made_with
            model_bytes.append(int(min(sum(of_models[-1].values()), most)))
            more = sum(own.get(key, 0) for key in chosen - by_ddp)
            unfrozen_bytes += int(max(0, more - most))
            by_ddp |= chosen
            ignored |= {id(parameter) for parameter in model.parameters()} - chosen
        is_shard = any(_is_shard(parameter) for parameter in self._trained.values())
        # If FSDP2's shards are trained, FSDP1's model may be a frozen model, which does not count.
        flat = self._flat() and not is_shard
        found = {
            "parameter_bytes": sum(own.values()),
            "sharded": flat or is_shard,
            "flat": flat,
            "ddp_bytes": sum(size for key, size in own.items() if key in by_ddp) - unfrozen_bytes,
            "ignored_bytes": sum(size for key, size in own.items() if key in ignored - by_ddp),
            "other_libraries": _other_libraries(),
            "untrained_modules": untrained if len(untrained) <= _MOST_MODULES else [],
            "ddp_model_bytes": model_bytes,
            "updated_models": _models_with(of_models, self._by_update),
            "kept_gradients": _models_with(of_models, self._kept_by_update),
        }
        self._recorder.add_metadata(json.dumps({"trained": found}))
        if not self._looks:
            self._trained, self._by_update = {}, []
            self._gradients, self._kept_by_update = [], []
        return not found["ddp_bytes"] and not found["sharded"]

    def _check(self) -> None:
        rank, world_size = rank_and_world_size()
        if world_size > 1:
            args = (self._recorder, self._path, rank, world_size)
            threading.Thread(target=_warn, args=args, name="commprof", daemon=True).start()


def _models_with(models: list[dict[int, int]], by_update: list[set[int]]) -> list[list[int]]:
    """Returns, for each update, the indices of the models with a parameter of this update.

    Empty if there are more than ``MOST_MODELS`` models.
    """
    if len(models) > MOST_MODELS:
        return []
    return [
        [number for number, sizes in enumerate(models) if not chosen.isdisjoint(sizes)]
        for chosen in by_update
    ]


def untrained_modules(model: DistributedDataParallel, trained: set[int]) -> list[str]:
    """Returns the names of the outermost modules in which DDP reduces only untrained parameters.

    Empty if these modules do not contain all untrained parameters.

    Args:
        model: a DDP model.
        trained: the ``id()`` of each trained parameter.
    """
    chosen = {id(parameter) for _, parameter in reduced(model)}
    names: list[str] = []
    held: set[int] = set()
    for name, module in model.module.named_modules():
        # Skips submodules of the last module in ``names``, which come directly after the module.
        if not name or (names and name.startswith(f"{names[-1]}.")):
            continue
        parts = {id(parameter) for parameter in module.parameters()} & chosen
        if parts and not parts & trained:
            names.append(name)
            held |= parts
    return names if chosen - trained <= held else []


def _other_libraries() -> list[str]:
    found = {name for module, name in _OTHER_LIBRARIES.items() if module in sys.modules}
    # torch imports this module even if the job does not use it
    rpc = sys.modules.get("torch.distributed.rpc.api")
    if rpc is not None and getattr(rpc, "_is_current_rpc_agent_set", bool)():
        found.add("torch.distributed.rpc")
    return sorted(found)


def _bytes(parameter: torch.Tensor) -> int:
    """Returns the size in bytes of this rank's part of a parameter."""
    own = getattr(parameter, "_local_tensor", parameter)
    return int(own.numel()) * int(own.element_size())


def _is_shard(parameter: torch.Tensor) -> bool:
    """True for a DTensor, whose other parts may be on other ranks."""
    return hasattr(parameter, "_local_tensor")


def _warn(recorder: Recorder, path: Path, rank: int, world_size: int) -> None:
    """Prints a warning, once per job, if this rank's trace shows no exchange of gradients."""
    try:
        time.sleep(_WRITTEN_S)
        if recorder.started():
            recorder.flush()  # in always-on mode, this writes a summary
        trace = read_trace(path)
        found = exchanged_in_summary(trace) or exchanged_by(trace)
        if trace.metadata.get("capture") == "python" or trace.dropped or not alone(found):
            return
        if _is_first(rank):
            print(warning(found, world_size, path.parent), file=sys.stderr)
    except Exception as error:
        _complain(error)


def alone(found: Exchanged) -> bool:
    """True if a rank trains, but its trace shows no exchange of gradients.

    False if another library, which may exchange them, is loaded.
    """
    libraries = found.trained is not None and found.trained.other_libraries
    return found.trains and not libraries and not any(one.of_gradients for one in found.groups)


def warning(found: Exchanged, world_size: int, directory: Path) -> str:
    """Returns the line that warns, while the job runs, that a rank exchanges no gradients."""
    size = f" ({in_bytes(found.trained.parameter_bytes)})" if found.trained is not None else ""
    return (
        f"commprof: rank {found.rank} made {counted(found.updates, 'update')} of its parameters"
        f"{size} without exchanging their gradients with any other of the {world_size} ranks. "
        "Unless parameters are averaged later, each rank trains a model of its own. Check that the "
        "model is wrapped, for example in DistributedDataParallel; when the job has ended, run "
        f"{invocation.command('report', invocation.quoted(directory))}"
    )


def _is_first(rank: int) -> bool:
    """True on the job's first rank that calls this; without a default group, on rank 0."""
    if not dist.is_initialized():
        return rank == 0
    return int(default_store("commprof/apart").add("said", 1)) == 1


def _complain(error: Exception) -> None:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    print(f"commprof: the exchange of gradients was not checked: {why}", file=sys.stderr)
