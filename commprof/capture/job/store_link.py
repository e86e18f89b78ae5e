"""What ranks must agree on through the store of the default group, without any collective.

Capture may start before that group exists, so it is looked for when capture starts and at the end
of each step.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import torch.distributed as dist

#: How long the start of capture waits for the other rank to be there.
_WAIT_S = 0.5
_POLL_S = 0.01
#: Later a look costs one exchange with the store: not more often than this, not more than so often.
_LATER_S = 0.1
_LOOKS = 100


class StoreLink(ABC):
    """One capture's part. Every method is for the training thread, none ever raises."""

    def __init__(self, pending: bool) -> None:
        """``pending`` is whether there is anything to agree on."""
        #: Whether there is something left to do; see :meth:`look`.
        self.pending = pending
        self._looks = 0
        self._not_before = 0.0

    def start(self) -> None:
        """Begins; waits half a second at most for the other rank, as a rule there already."""
        until = time.monotonic() + _WAIT_S
        while self.pending and dist.is_initialized() and time.monotonic() < until:
            self._look()
            if self.pending:
                time.sleep(_POLL_S)

    def look(self) -> None:
        """Tries again where the group, or the other rank, was not there. Call it while pending."""
        now = time.monotonic()
        if now < self._not_before or not dist.is_initialized():
            return
        self._not_before = now + _LATER_S
        self._looks += 1
        self._look()
        if self._looks >= _LOOKS:
            self.pending = False  # the other rank does not record

    @abstractmethod
    def agreed(self) -> bool:
        """One try; whether everything is said."""

    def _look(self) -> None:
        try:
            self.pending = not self.agreed()
        except Exception:
            # A store that is gone or of another kind, no address, no socket, no module that may be
            # read: it stays unknown. Whatever it is, training is not to end for it.
            self.pending = False


def default_store(prefix: str) -> Any:
    """The default group's store, under a prefix of our own."""
    return dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())
