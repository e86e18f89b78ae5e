"""commprof: measures what a PyTorch job's communication really costs."""

from __future__ import annotations

import importlib
from typing import Any

from commprof._version import __version__

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

#: For each public name of the profiler, the module that defines it. All of these names need torch,
#: except those in ``_WITHOUT_TORCH``. The other names in ``__all__`` come from
#: :mod:`commprof.satellites`.
_HOMES = {
    "Attachment": "commprof.capture.attachment",
    "LoadedRun": "commprof.commands.showing.loaded",
    "Profiler": "commprof.capture.profiler",
    "attach": "commprof.capture.attachment",
    "load": "commprof.commands.showing.loaded",
    "profile": "commprof.capture.profiler",
    "step": "commprof.capture.profiler",
}
_WITHOUT_TORCH = ("LoadedRun", "load")


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that reports work without torch."""
    if name in __all__ and name not in _WITHOUT_TORCH:
        _require_main_interpreter(f"commprof.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        from commprof import satellites

        return satellites.public_name(name)
    raise AttributeError(f"module 'commprof' has no attribute {name!r}")


def _require_main_interpreter(what: str) -> None:
    from commprof.errors import CommprofError
    from commprof.main_interpreter import is_main_interpreter

    if not is_main_interpreter():
        raise CommprofError(
            f"{what} needs torch, and torch works only in the main interpreter of a process; "
            "this is a sub-interpreter: train and record in the main interpreter, or in another "
            "process"
        )
