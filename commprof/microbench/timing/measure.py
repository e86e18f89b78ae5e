"""Taking samples: when each rank began and ended each call, by its own clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from commprof.analysis.sweeps.sweep_samples import Times
from commprof.microbench.timing.native_loop import sample_in_cpp

Call = Callable[[], None]


@dataclass(frozen=True)
class Subject:
    """What is called once per sample."""

    call: Call
    """Timed."""
    prepare: Call | None = None
    """Called before each call, before the ranks meet; not timed."""

    def repeat(self, times: int) -> None:
        """Calls it untimed."""
        for _ in range(times):
            if self.prepare is not None:
                self.prepare()
            self.call()


def take_samples(subject: Subject, meet: Call, iterations: int) -> Times:
    """Times of one rank's calls, in ns of CLOCK_MONOTONIC. meet: called before each of them."""
    in_cpp = None if subject.prepare else sample_in_cpp(subject.call, meet, iterations)
    if in_cpp is not None:
        return in_cpp
    begin_ns, end_ns = [0] * iterations, [0] * iterations
    call, prepare, now = subject.call, subject.prepare, time.monotonic_ns
    with _no_collector():
        for i in range(iterations):
            if prepare is not None:
                prepare()
            meet()
            begin_ns[i] = now()
            call()
            end_ns[i] = now()
    return Times(np.array(begin_ns, np.int64), np.array(end_ns, np.int64))


def pilot_ns(subject: Subject, meet: Call) -> float:
    """Median of a few calls of this rank, after two that nobody times."""
    subject.repeat(2)
    times = take_samples(subject, meet, 3)
    return float(np.median(times.end_ns - times.begin_ns))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Python's garbage collector would land in one sample."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
