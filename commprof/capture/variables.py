"""Environment variables that are read late, refused while nothing has begun."""

from __future__ import annotations

import os

from commprof.errors import UsageError

#: Those with a fixed set of values; an empty one counts as unset.
_ALLOWED = {
    "COMMPROF_DEVICE_EVENTS": ("on", "off"),
    "COMMPROF_NATIVE": ("0", "1"),
    "COMMPROF_STACKS": ("0", "1"),
}


def check_variables() -> None:
    """Refuses what the recorder or the kernels would ignore, or refuse in the midst of training.

    Raises:
        UsageError: a variable has a value that means nothing.
    """
    check_choices()
    from commprof import _native  # imports torch

    if _native.native is None:
        return
    for read in (_native.native.simd_level, _native.native.kernel_threads):
        try:
            read()
        except ValueError as error:
            raise UsageError(f"{error}; take one of these, or unset the variable") from None


def check_choices() -> None:
    """The part of ``check_variables`` that needs no torch."""
    for name, allowed in _ALLOWED.items():
        value = os.environ.get(name)
        if value and value not in allowed:
            raise UsageError(
                f"{name}={value!r} means nothing (allowed: {', '.join(allowed)}); take one of "
                "these, or unset the variable"
            )
