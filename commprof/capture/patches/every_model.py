"""Gives every DDP model of an unchanged script a compressor or a bucket cap."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof import satellites
from commprof.capture.attachment import attach

_CAP = "bucket_cap_mb"
#: DDP's argument that gives each bucket its own cap; not every version of torch has it.
_CAPS = "bucket_cap_mb_list"


def attach_every_model(compressor: str) -> None:
    """Attaches a compressor to each DDP model that the script makes from now on.

    A hook that the script registers later replaces the compressor. If a compressor cannot be
    attached, the model's first rank prints the reason, and the model trains without it. Attaching
    fails on all ranks of the model or on none.

    Args:
        compressor: text that ``commprof.compressors.parse`` accepts.

    Raises:
        UsageError: the text is not a valid compressor.
    """
    parse = satellites.tune().parse_hook
    parse(compressor)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            attach(self, parse(compressor))
        except Exception as error:
            if self.process_group.rank() == 0:
                what = (str(error).splitlines() or [type(error).__name__])[0]
                print(
                    f"commprof: a model trains without the compressor {compressor}: {what}",
                    file=sys.stderr,
                )

    DistributedDataParallel.__init__ = made


def cap_every_model(cap_mb: float) -> None:
    """Sets the bucket cap of each DDP model that is made from now on.

    If the script sets a model's cap, this cap is kept, and rank 0 prints a message once.

    Args:
        cap_mb: the cap in MiB, the value for DDP's argument ``bucket_cap_mb``.
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
                f"commprof: the script sets {named} for a model, and this cap is kept; "
                f"--bucket-cap-mb {cap_mb:g} applies only to models for which the script sets no "
                f"cap",
                file=sys.stderr,
            )
        original(self, *args, **kwargs)

    DistributedDataParallel.__init__ = made


def _named(signature: inspect.Signature, *args: Any, **kwargs: Any) -> str:
    """Returns DDP's argument for the bucket cap as ``name=value``; empty if there is none."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return ""
    named = ((name, given.get(name)) for name in (_CAP, _CAPS))
    return next((f"{name}={value}" for name, value in named if value not in (None, [])), "")
