"""Engines, such as compressors, that commprof's DDP hook runs in place of the mean all-reduce."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel


class RunningEngine(Protocol):
    """An engine at work in one model."""

    #: The object that commprof's hook calls: a native engine, or a function of a state and a
    #: bucket.
    engine: Any
    #: True if ``engine`` is native.
    is_native: bool
    #: True after :meth:`stop`, and after the start of another engine has stopped this engine.
    is_stopped: bool

    def stop(self) -> None:
        """Ends the engine's thread."""


class HookEngine(ABC):
    """Replacement for DDP's mean all-reduce that needs more access to the model than a hook has."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The engine's name and options, for the trace's metadata."""

    @abstractmethod
    def shared_of(self, ddp: DistributedDataParallel) -> Any:
        """Makes the objects, such as connections, that a model's successive engines share."""

    @abstractmethod
    def start(
        self, ddp: DistributedDataParallel, shared: Any, replaced: RunningEngine | None
    ) -> RunningEngine:
        """Starts the engine in a model, in place of the engine ``replaced``.

        All ranks call this together.

        Raises:
            CommprofError: the ranks' engines or parameters differ, or the engine cannot start.
                ``replaced`` may already be stopped.
        """

    @abstractmethod
    def require_free(self) -> None:
        """Raises CommprofError if this engine works in a model already."""

    @abstractmethod
    def bind(self, running: Any) -> None:
        """Notes ``running``, which :meth:`start` returned for a model."""

    @abstractmethod
    def unbind(self) -> None:
        """Forgets what :meth:`bind` noted; called when another hook takes over in the model."""
