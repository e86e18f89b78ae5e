"""``python -m commprof``: the same as ``commprof``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from commprof.interrupts import enter


def main() -> NoReturn:
    """Runs the command ``commprof`` and ends the process with its exit code."""
    enter(_load)


def _load() -> Callable[[], int]:
    from commprof.commands import main

    return main


if __name__ == "__main__":
    main()
