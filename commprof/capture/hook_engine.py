"""Interface of engines, such as compressors, that replace DDP's mean all-reduce."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel


class RunningEngine(Protocol):
    """An engine that runs in one model."""

    #: A native engine, or a Python function that is called with a state and a bucket.
    engine: Any
    is_native: bool
    #: True after :meth:`stop`. The start of another engine can also stop this engine.
    is_stopped: bool

    def stop(self) -> None:
        """Ends the engine's thread."""


class HookEngine(ABC):
    """Replacement for DDP's mean all-reduce that needs access to the whole model."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The engine's name and options, for the trace's metadata."""

    @abstractmethod
    def shared_of(self, ddp: DistributedDataParallel) -> Any:
        """Makes objects, such as connections, that all later engines of the model share."""

    @abstractmethod
    def start(
        self, ddp: DistributedDataParallel, shared: Any, replaced: RunningEngine | None
    ) -> RunningEngine:
        """Starts the engine in a model, and stops the engine ``replaced``.

        It must be called on all ranks.

        Raises:
            CommprofError: the ranks' engines or parameters differ, or the engine cannot start.
                ``replaced`` may already be stopped.
        """

    @abstractmethod
    def require_free(self) -> None:
        """Raises CommprofError if this engine is already in use in a model."""

    @abstractmethod
    def bind(self, running: Any) -> None:
        """Stores ``running``, which :meth:`start` returned."""

    @abstractmethod
    def unbind(self) -> None:
        """Drops what :meth:`bind` stored; called when another hook replaces the engine."""
