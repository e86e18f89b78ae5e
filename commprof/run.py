"""``python -m commprof.run`` does what ``commprof run`` does."""

from __future__ import annotations

from collections.abc import Callable

from commprof.interrupts import enter


def _load() -> Callable[[], int]:
    from commprof.commands import main_of

    return lambda: main_of("run")


if __name__ == "__main__":
    enter(_load)
