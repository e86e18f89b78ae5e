"""Phases of stated length: sleeping until absolute deadlines on CLOCK_MONOTONIC."""

from __future__ import annotations

import time

_WAKE_EARLY_NS = 200_000  # a long sleep overshoots by less than this; the rest is short sleeps
_SHORT_SLEEP_S = 20e-6


class Pacer:
    """Sleeps until absolute deadlines within one phase."""

    def __init__(self) -> None:
        self._started_ns = self._due_ns = self._reached_ns = 0

    def start(self, delay_ns: int = 0) -> None:
        """A phase begins now; its first deadline is so much later."""
        self._started_ns = time.monotonic_ns()
        self._due_ns = self._started_ns + delay_ns

    def wait(self, duration_ns: int) -> None:
        """Return `duration_ns` after the deadline before this one, or at once if that is past."""
        self._due_ns += duration_ns
        _sleep_until(self._due_ns)

    def stamp(self) -> None:
        """The phase's own work is done now."""
        self._reached_ns = time.monotonic_ns()

    @property
    def span_ns(self) -> tuple[int, int]:
        """Start of the phase, and the stamp."""
        return self._started_ns, self._reached_ns


def _sleep_until(due_ns: int) -> None:
    left_ns = due_ns - time.monotonic_ns()
    if left_ns > _WAKE_EARLY_NS:
        time.sleep((left_ns - _WAKE_EARLY_NS) / 1e9)
    while time.monotonic_ns() < due_ns:
        time.sleep(_SHORT_SLEEP_S)
