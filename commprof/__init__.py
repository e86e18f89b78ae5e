"""commprof: measures what a PyTorch job's communication really costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commprof._version import __version__

if TYPE_CHECKING:
    from commprof import compressors
    from commprof.capture import Attachment, Profiler, attach, profile, step
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


def __getattr__(name: str) -> Any:
    """Loads capture, and torch with it, at first use: reading a report needs neither."""
    if name == "compressors":
        import commprof.compressors

        return commprof.compressors
    if name in ("Trial", "trial"):
        from commprof.trials import live as switching

        return getattr(switching, name)
    if name in __all__:
        from commprof import capture

        return getattr(capture, name)
    raise AttributeError(f"module 'commprof' has no attribute {name!r}")
