"""Attaches a compressor to every DDP model of a script that knows nothing of it."""

from __future__ import annotations

import functools
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import attach
from commprof.compressors import parse


def attach_every_model(compressor: str) -> None:
    """From now on each DDP model that is made gets a compressor of its own.

    A hook that the script registers takes its place, with a line on stderr; see ``Attachment``.

    Args:
        compressor: as ``commprof.compressors.parse`` takes it.

    Raises:
        UsageError: it does not take it.
    """
    parse(compressor)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        attach(self, parse(compressor))

    DistributedDataParallel.__init__ = made
