"""Checks at a fixed interval of steps that all ranks have bit-identical models.

Each rank writes a hash of its parameters into the default group's store. Rank 0 compares the hashes
at the next check. Parameters that DDP ignores are left out. No collective is issued. No rank waits
for another rank, except rank 0 for the last hashes, when capture ends.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.job.store_links import default_store
from commprof.capture.profiler import Profiler
from commprof.capture.recorder import recorder
from commprof.ddp_parameters import kept_equal
from commprof.text import counted, named_ranks

_PREFIX = "commprof/sync"
#: How long rank 0 waits for the last hashes of the other ranks when capture ends.
_LAST_S = 1.0
_POLL_S = 0.01
#: Maximum number of checks that wait for hashes. Each rank has this number of keys in the store,
#: and later checks use the same keys again.
_MOST_PENDING = 64
#: Counts this process's captures. Each capture has its own keys in the store.
_captures = itertools.count()
_STORE_ERRORS = (RuntimeError, OSError, ValueError, KeyError)


def parameters_digest(models: Sequence[nn.Module]) -> str:
    """Returns a BLAKE2b hash of all bits of the models' parameters.

    Parameters that DDP ignores are left out. Buffers are left out, too, because a forward pass may
    change buffers differently on each rank.
    """
    digest = hashlib.blake2b(digest_size=16)
    for model in models:
        for parameter in _compared(model):
            value = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(value.numpy())
    return digest.hexdigest()


def _compared(model: nn.Module) -> Iterable[nn.Parameter]:
    return kept_equal(model) if isinstance(model, DistributedDataParallel) else model.parameters()


class SyncCheck:
    """Takes part in the comparison on one rank; a ``Listener`` of the capture's steps."""

    def __init__(self, every: int, store: Any, rank: int, world_size: int) -> None:
        """``store``: shared by all ranks, and used for this check only."""
        self._every = every
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._models: list[weakref.ref[nn.Module]] = []
        self._pending: deque[int] = deque(maxlen=_MOST_PENDING)
        #: Number of checks whose hashes rank 0 has compared.
        self.checks = 0
        #: Ranks whose models differed from the most common model, in the first check in which
        #: models differed.
        self.different: tuple[int, ...] = ()
        #: The step after which this check took place.
        self.first_step = 0

    def add(self, model: nn.Module) -> None:
        """Adds a model to the comparison; only a weak reference is kept."""
        self._models.append(weakref.ref(model))

    def step_ended(self, step: int) -> None:
        """Publishes this rank's hash if a check is due after the step."""
        if self._store is None or (step + 1) % self._every:
            return
        models = [model for reference in self._models if (model := reference()) is not None]
        if not models:
            return
        digest = self._digest(models)
        if not digest:
            return
        try:
            self._compare_pending()
            self._store.set(self._key(step, self._rank), f"{step} {digest}")
        except _STORE_ERRORS:
            self._store = None  # the store no longer exists: the job is ending
            return
        if self._rank == 0:
            self._pending.append(step)

    def _digest(self, models: Sequence[nn.Module]) -> str:
        """Returns the models' hash. If it cannot be computed, ends the checks and returns ""."""
        try:
            return parameters_digest(models)
        except Exception as error:
            self._store = None
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            print(
                f"commprof: rank {self._rank} no longer compares its model with the models of the "
                f"other ranks (--check-sync): {what}",
                file=sys.stderr,
            )
            return ""

    def capture_ends(self) -> None:
        """On rank 0, compares the ranks' remaining hashes, and writes the findings to the trace."""
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

    def _key(self, step: int, rank: int) -> str:
        return f"{step // self._every % _MOST_PENDING}/{rank}"

    def _compare_pending(self) -> None:
        while self._pending:
            step = self._pending[0]
            keys = [self._key(step, rank) for rank in range(self._world_size)]
            if not self._store.check(keys):
                return
            answers = [bytes(each).split() for each in self._store.multi_get(keys)]
            steps = [int(of_step) for of_step, _ in answers]
            if min(steps) < step:
                return
            if max(steps) == step:  # otherwise a rank has overwritten its hash of this step
                self._compare(step, [digest for _, digest in answers])
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
            f"commprof: after step {step} the model of {whose} is not bit-identical to that of "
            f"the {counted(len(digests) - len(different), 'other rank')}",
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
    """Starts comparing DDP models across all ranks: ``models``, and models made from now on.

    ``every``: number of steps between two comparisons; 0: no comparison.
    """
    if not every:
        return
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    world_size = dist.get_world_size()
    store = default_store(f"{_PREFIX}/{next(_captures)}")
    check = SyncCheck(every, store, dist.get_rank(), world_size)
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
    """Adds a DDP model if its group has all ranks; models of smaller groups may differ."""
    if (
        isinstance(model, DistributedDataParallel)
        and dist.get_world_size(model.process_group) == world_size
    ):
        check.add(model)
