"""commprof: measures what a PyTorch job's communication really costs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from commprof._version import __version__

if TYPE_CHECKING:
    from commprof.capture.attachment import Attachment, attach
    from commprof.capture.profiler import Profiler, profile, step
    from commprof.commands.showing.loaded import LoadedRun, load
    from commprof.tune import compressors
    from commprof.tune.trials.live import Trial, trial

__all__ = [
    "Attachment",
    "LoadedRun",
    "Profiler",
    "Trial",
    "__version__",
    "attach",
    "compressors",
    "load",
    "profile",
    "step",
    "trial",
]

#: Module that defines each public name; all need torch, except those that read reports.
_HOMES = {
    "Attachment": "commprof.capture.attachment",
    "LoadedRun": "commprof.commands.showing.loaded",
    "Profiler": "commprof.capture.profiler",
    "Trial": "commprof.tune.trials.live",
    "attach": "commprof.capture.attachment",
    "load": "commprof.commands.showing.loaded",
    "profile": "commprof.capture.profiler",
    "step": "commprof.capture.profiler",
    "trial": "commprof.tune.trials.live",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when first used, so that reports need neither capture nor torch."""
    if name == "compressors":
        return importlib.import_module("commprof.tune.compressors")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'commprof' has no attribute {name!r}")
