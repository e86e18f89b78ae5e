"""Do all ranks still have the same model, bit by bit? Looked at every so many steps of a training.

Each rank leaves a hash of its parameters in the store at which the ranks met; rank 0 compares them
one look later. There is no collective, nobody waits for anybody, and nothing of the training is
changed: it costs a pass over the parameters and one small message per look.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.job.store_links import default_store
from commprof.capture.profiler import Profiler
from commprof.capture.recorder import recorder
from commprof.text import named_ranks

_PREFIX = "commprof/sync"
#: When capture ends rank 0 waits so long for the last hashes of ranks that are not there yet.
_LAST_S = 1.0
_POLL_S = 0.01
#: Looks that were not compared yet; a rank that never answers must not pile them up.
_MOST_PENDING = 64
_STORE_ERRORS = (RuntimeError, OSError, ValueError, KeyError)


def parameters_digest(models: Sequence[nn.Module]) -> str:
    """BLAKE2b over all parameters in order: equal on two ranks if, and only if, the bits are.

    Buffers are left out: DDP sends rank 0's before each forward pass, and after it they differ.
    What is on a device is copied to the host.
    """
    digest = hashlib.blake2b(digest_size=16)
    for model in models:
        for parameter in model.parameters():
            value = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(value.numpy())
    return digest.hexdigest()


class SyncCheck:
    """One rank's part in comparing models; a ``Listener`` of the capture's steps."""

    def __init__(self, every: int, store: Any, rank: int, world_size: int) -> None:
        """``store``: the same for all ranks, for this alone."""
        self._every = every
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._models: list[weakref.ref[nn.Module]] = []
        self._pending: deque[int] = deque(maxlen=_MOST_PENDING)
        #: Looks that rank 0 compared.
        self.checks = 0
        #: Ranks whose bits differed from most ranks', at the first look where some did, after the
        #: step of that number.
        self.different: tuple[int, ...] = ()
        self.first_step = 0

    def add(self, model: nn.Module) -> None:
        """Compares this model too, as long as it lives."""
        self._models.append(weakref.ref(model))

    def step_ended(self, step: int) -> None:
        """See ``Listener``."""
        if self._store is None or (step + 1) % self._every:
            return
        models = [model for reference in self._models if (model := reference()) is not None]
        if not models:
            return
        try:
            self._compare_pending()
            self._store.set(f"{step}/{self._rank}", parameters_digest(models))
        except _STORE_ERRORS:
            self._store = None  # it went away, and with it the job
            return
        if self._rank == 0:
            self._pending.append(step)

    def capture_ends(self) -> None:
        """Compares what is left on rank 0, which writes its findings into the trace."""
        if self._rank != 0:
            return
        until = time.monotonic() + _LAST_S
        try:
            while self._store is not None and self._pending:
                self._compare_pending()
                if not self._pending or time.monotonic() > until:
                    break
                time.sleep(_POLL_S)
        except _STORE_ERRORS:
            pass
        if self.checks:
            recorder().add_metadata(json.dumps({"sync_checks": self._found()}))

    def _compare_pending(self) -> None:
        while self._pending:
            step = self._pending[0]
            keys = [f"{step}/{rank}" for rank in range(self._world_size)]
            if not self._store.check(keys):
                return
            self._compare(step, [bytes(self._store.get(key)) for key in keys])
            for key in keys:
                self._store.delete_key(key)
            self._pending.popleft()

    def _compare(self, step: int, digests: Sequence[bytes]) -> None:
        self.checks += 1
        common = Counter(digests).most_common(1)[0][0]
        different = tuple(rank for rank, digest in enumerate(digests) if digest != common)
        if not different or self.different:
            return
        self.different, self.first_step = different, step
        whose = named_ranks(different)
        print(
            f"commprof: after step {step} the model of {whose} has other bits than that of the "
            f"{len(digests) - len(different)} other ranks",
            file=sys.stderr,
        )
        recorder().add_metadata(json.dumps({"sync_checks": self._found()}))

    def _found(self) -> dict[str, Any]:
        return {
            "every": self._every,
            "checks": self.checks,
            "first_step": self.first_step,
            "ranks": [str(rank) for rank in self.different],
        }


def check_models(profiler: Profiler, every: int, models: Sequence[nn.Module] = ()) -> None:
    """Compares these DDP models, and every later one, with those of all ranks.

    every: steps between two comparisons; 0 compares none.
    """
    if not every:
        return
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    world_size = dist.get_world_size()
    check = SyncCheck(every, default_store(_PREFIX), dist.get_rank(), world_size)
    profiler.listen(check)
    for model in models:
        _add(check, model, world_size)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _add(check, self, world_size)

    DistributedDataParallel.__init__ = made


def _add(check: SyncCheck, model: nn.Module, world_size: int) -> None:
    """Models of a part of the ranks may differ from each other."""
    if (
        isinstance(model, DistributedDataParallel)
        and dist.get_world_size(model.process_group) == world_size
    ):
        check.add(model)
