"""Runs ``commprof microbench`` as ``python -m commprof.microbench``."""

from __future__ import annotations

from collections.abc import Callable

from commprof.interrupts import enter


def _load() -> Callable[[], int]:
    from commprof.commands import main_of

    return lambda: main_of("microbench")


if __name__ == "__main__":
    enter(_load)
