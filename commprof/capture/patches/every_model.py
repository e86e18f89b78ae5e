"""What every DDP model of a script gets that knows nothing of it: a compressor, a bucket cap."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import attach
from commprof.compressors import parse

_CAP = "bucket_cap_mb"
#: One for each bucket, where torch has it.
_CAPS = "bucket_cap_mb_list"


def attach_every_model(compressor: str) -> None:
    """Gives each DDP model that is made from now on a compressor of its own.

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


def cap_every_model(cap_mb: float) -> None:
    """Gives each DDP model made from now on this bucket cap, unless its maker names one.

    Rank 0 says once on stderr that one was named.

    Args:
        cap_mb: MiB, as DDP counts its ``bucket_cap_mb``.
    """
    original = DistributedDataParallel.__init__
    signature = inspect.signature(original)
    said = False

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal said
        named = _named(signature, self, *args, **kwargs)
        if not named:
            kwargs[_CAP] = cap_mb
        elif not said and dist.get_rank() == 0:
            said = True
            print(
                f"commprof: a model names its own {named} and keeps it; --bucket-cap-mb {cap_mb:g} "
                "is for models that name none",
                file=sys.stderr,
            )
        original(self, *args, **kwargs)

    DistributedDataParallel.__init__ = made


def _named(signature: inspect.Signature, *args: Any, **kwargs: Any) -> str:
    """The cap among the arguments, empty without one; wrong arguments DDP refuses itself."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return ""
    named = ((name, given.get(name)) for name in (_CAP, _CAPS))
    return next((f"{name}={value}" for name, value in named if value not in (None, [])), "")
