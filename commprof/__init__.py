"""commprof: measures what a PyTorch job's communication really costs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from commprof._version import __version__

if TYPE_CHECKING:
    from commprof import compressors
    from commprof.capture.attachment import Attachment, attach
    from commprof.capture.profiler import Profiler, profile, step
    from commprof.trials.live import Trial, trial

__all__ = [
    "Attachment",
    "Profiler",
    "Trial",
    "__version__",
    "attach",
    "compressors",
    "profile",
    "step",
    "trial",
]

#: The public names that need torch, and the modules that define them.
_HOMES = {
    "Attachment": "commprof.capture.attachment",
    "Profiler": "commprof.capture.profiler",
    "Trial": "commprof.trials.live",
    "attach": "commprof.capture.attachment",
    "profile": "commprof.capture.profiler",
    "step": "commprof.capture.profiler",
    "trial": "commprof.trials.live",
}


def __getattr__(name: str) -> Any:
    """Loads capture, and torch with it, at first use: reading a report needs neither."""
    if name == "compressors":
        import commprof.compressors

        return commprof.compressors
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'commprof' has no attribute {name!r}")
