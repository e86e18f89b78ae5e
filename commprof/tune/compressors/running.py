"""Runs a compressor in one DDP model: makes and stops the engine that exchanges the gradients."""

from __future__ import annotations

import atexit
import hashlib
import weakref
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NoReturn, Protocol

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof import _native
from commprof.ddp_parameters import reduced, reduced_first, sparse_weights
from commprof.errors import CommprofError
from commprof.tune.compressors.compressor import Compressor
from commprof.tune.compressors.groups import Groups
from commprof.tune.compressors.torch_ops import TorchOps

#: State of an engine. Each item has a parameter index, a kind, and values.
StateItems = list[tuple[int, str, Any]]

#: Argument of ``Engine.stop``, in seconds.
_PATIENCE_S = 1.0


class Engine(Protocol):
    """Interface of an engine that compresses: the native hook, or ``TorchOps``."""

    step: int

    def state(self) -> StateItems:
        """Returns the engine's state, such as residuals, sorted by parameter index."""

    def load_state(self, state: StateItems) -> None:
        """Replaces all state."""

    def scale_residuals(self, factor: float) -> None:
        """Multiplies the residuals by the factor by which the loss scale changed."""

    def step_skipped(self) -> None:
        """Adds the sent values of the last step to the residuals again."""

    def stop(self, patience_s: float) -> None:
        """Ends the engine's thread, if it has one.

        First waits up to ``patience_s`` seconds for exchanges to end. Then interrupts them, and
        waits up to ``patience_s`` more seconds.
        """


class Running:
    """Owns the engine of a compressor in one model."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        compressor: Compressor,
        groups: Groups,
        replaced: Running | None = None,
    ) -> None:
        """Makes the engine; if it is native, all ranks must make their engines together.

        Args:
            ddp: the model.
            compressor: scheme and options.
            groups: process groups and connections for the model's exchanges.
            replaced: the owner of the model's previous native engine. That engine is stopped once
                the ranks agree, because only one engine at a time can use a group's connections.

        Raises:
            CommprofError: the ranks differ in scheme, options or parameters; or a rank cannot make
                its engine. All ranks raise the error.
        """
        self.is_stopped = False
        named = reduced_first(ddp)
        self.names = [name for name, _ in named]
        self.sizes = [parameter.numel() for _, parameter in named]
        model_group = ddp.process_group
        self.rank, self.world_size = model_group.rank(), model_group.size()
        parameters = [parameter for _, parameter in named]
        self.is_native = groups.native
        self.compresses = True
        #: Number of ranks that keep a residual of the same parameter: all ranks or, with
        #: ``hierarchical=1``, one rank of each host.
        self.residual_ranks = self.world_size
        #: True if this rank loads the residuals of a merged state. With ``hierarchical=1``, only
        #: one rank of each host loads the residuals.
        self.keeps_merged = True
        if not groups.native:
            self.engine: Any = TorchOps(model_group, parameters, compressor)
        else:
            require_agreement(groups.all, compressor, ddp)
            if replaced is not None:
                replaced.stop()
            way = groups.way(compressor)
            self.residual_ranks = way.hosts or self.world_size
            self.keeps_merged = way.local_rank == 0
            scheme, options = compressor.scheme, compressor.options
            self.compresses = way.compresses
            if not self.compresses:
                scheme, options = "hierarchical", {}

            def make() -> Any:
                return _native.tune.CompressingHook(
                    model_group,
                    way.group,
                    parameters,
                    scheme,
                    options,
                    compressor.seed,
                    compressor.measure_every,
                    compressor.label,
                    mesh=way.mesh,
                    team=way.team,
                    owners=way.owners,
                    hosts=way.hosts,
                )

            self.engine = _made_by_all(groups.all, make)
            _stop_at_exit(self.engine)

    def stop(self) -> None:
        """Ends the engine's thread."""
        self.is_stopped = True
        self.engine.stop(_PATIENCE_S)


def _made_by_all(group: dist.ProcessGroup, make: Callable[[], Any]) -> Any:
    """Makes this rank's engine; if any rank fails, raises its error on all ranks."""
    engine, problem = None, ""
    try:
        engine = make()
    except Exception as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
    problems = _of_all_ranks(group, problem)
    if any(problems):
        if engine is not None:
            engine.stop(_PATIENCE_S)
        rank, text = next((rank, text) for rank, text in enumerate(problems) if text)
        raise CommprofError(f"rank {rank} cannot make its compressor: {text}")
    return engine


def disagreement(groups: Groups, compressor: Compressor, ddp: DistributedDataParallel) -> str:
    """Returns why the ranks cannot use a compressor together; empty if they can.

    All ranks of the model must call this together. Only native compressors are compared.
    """
    if not groups.native:
        return ""
    try:
        require_agreement(groups.all, compressor, ddp)
    except CommprofError as error:
        return str(error)
    return ""


def require_agreement(
    group: dist.ProcessGroup, compressor: Compressor, ddp: DistributedDataParallel
) -> None:
    """Checks that all ranks have the same compressor and model.

    Only the parameters that DDP reduces are compared. All ranks of ``group`` must call this
    together.

    Raises:
        CommprofError: the ranks differ. All ranks raise the error.
    """
    found = _described(ddp)
    digest = hashlib.sha256(repr(found).encode()).hexdigest()
    labels, digests = zip(*_of_all_ranks(group, (compressor.label, digest)), strict=True)
    if len(set(labels)) > 1:
        _refuse("compressor", group.rank(), labels)
    if len(set(digests)) > 1:  # equal on all ranks, so all ranks gather below
        models = _of_all_ranks(group, found)
        row = next(i for i, at in enumerate(zip_longest(*models)) if len(set(at)) > 1)
        _refuse(
            "parameter", group.rank(), [(*each, "none")[min(row, len(each))] for each in models]
        )


def _described(ddp: DistributedDataParallel) -> list[str]:
    sparse = sparse_weights(ddp.module)
    return [
        f"{name} {list(p.shape)} {p.dtype} on {p.device.type}"
        + (", sparse gradient" if id(p) in sparse else "")
        for name, p in reduced(ddp)
    ]


def _of_all_ranks(group: dist.ProcessGroup, mine: Any) -> list[Any]:
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, mine, group=group)
    return found


def _refuse(what: str, rank: int, found: Sequence[str]) -> NoReturn:
    other = next(i for i, theirs in enumerate(found) if theirs != found[rank])
    raise CommprofError(
        f"rank {rank} has {what} {found[rank]!r}, but rank {other} has {found[other]!r}; all ranks "
        "must attach the same compressor to the same model"
    )


def _stop_at_exit(engine: Any) -> None:
    """Stops the engine when Python exits. Does not keep the engine alive until then."""
    reference = weakref.ref(engine)

    def stop() -> None:
        alive = reference()
        if alive is not None:
            alive.stop(_PATIENCE_S)

    atexit.register(stop)
    weakref.finalize(engine, atexit.unregister, stop)
