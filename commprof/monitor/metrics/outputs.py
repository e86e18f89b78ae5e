"""Where metrics go: each output takes every state that the monitor sees.

An output that fails says so once and is tried again at the next state: a full disk may empty.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from commprof.files import replace_file
from commprof.monitor.metrics.endpoint import Endpoint
from commprof.monitor.metrics.metrics import Sample, flat, samples
from commprof.monitor.metrics.tensorboard import EventFile
from commprof.monitor.state import JobState

if TYPE_CHECKING:
    from prometheus_client import Metric


class Output(Protocol):
    """Interface of a place where metrics go."""

    def write(self, state: JobState) -> None:
        """Shows or writes what is known now; raises OSError if it cannot."""

    def close(self) -> None:
        """Closes the output."""


class Scraped:
    """Output that Prometheus fetches over HTTP."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Takes the endpoint over."""
        self._endpoint = endpoint

    def write(self, state: JobState) -> None:
        """See ``Output``."""
        self._endpoint.show(lambda: exposition(samples(state)))

    def close(self) -> None:
        """See ``Output``."""
        self._endpoint.close()


class TextFile:
    """Output in a file in Prometheus's format, for node_exporter's textfile collector."""

    def __init__(self, path: Path) -> None:
        """A reader finds the whole file or none: each state replaces it."""
        self._path = path

    def write(self, state: JobState) -> None:
        """See ``Output``."""
        replace_file(self._path, exposition(samples(state)))

    def close(self) -> None:
        """See ``Output``."""


class JsonLines:
    """Output of a JSON line per state with new steps: time, step and recent figures."""

    def __init__(self, path: Path) -> None:
        """Lines are added to what the file holds."""
        self._path = path
        self._step = -1
        #: Only a part of the last line found room.
        self._torn = False

    def write(self, state: JobState) -> None:
        """See ``Output``."""
        step = step_of(state)
        if step == self._step:
            return
        figures = {key: value for key, value in flat(state).items() if math.isfinite(value)}
        line = (
            json.dumps({"time_s": round(state.time_s, 3), "step": step, **figures}).encode() + b"\n"
        )
        if self._torn:
            line = b"\n" + line
        # One write, so that hosts that share the file do not mix their lines.
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        try:
            written = os.write(descriptor, line)
            self._torn = 0 < written < len(line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)
        self._step = step

    def close(self) -> None:
        """See ``Output``."""


class TensorBoard:
    """Output of scalars by step for TensorBoard."""

    def __init__(self, directory: Path) -> None:
        """The event file is made with the first state that has steps."""
        self._directory = directory
        self._file: EventFile | None = None
        self._step = -1

    def write(self, state: JobState) -> None:
        """See ``Output``."""
        step = step_of(state)
        if step == self._step:
            return
        if self._file is None:
            self._file = EventFile(self._directory, state.time_s)
        self._file.add(state.time_s, step, flat(state))
        self._step = step

    def close(self) -> None:
        """See ``Output``."""
        if self._file is not None:
            self._file.close()


def step_of(state: JobState) -> int:
    """Number of the last step that all ranks completed; -1 before the first."""
    return min((rank.step for rank in state.ranks), default=-1)


def write_to(output: Output, state: JobState, complain: Callable[[str], None]) -> None:
    """Writes a state to an output; never raises."""
    try:
        output.write(state)
    except OSError as error:
        complain(f"{type(output).__name__}: {error}")


def exposition(samples: Iterable[Sample]) -> bytes:
    """Returns the text of the samples, which come metric by metric."""
    from prometheus_client import generate_latest
    from prometheus_client.registry import Collector

    class Collected(Collector):
        def collect(self) -> Iterator[Metric]:
            return _families(samples)

    return generate_latest(Collected())


def _families(samples: Iterable[Sample]) -> Iterator[Metric]:
    """Yields what the library makes of each metric."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for metric, group in groupby(samples, key=attrgetter("metric")):
        found = list(group)
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=list(found[0].labels))
        for sample in found:
            family.add_metric([_encodable(text) for text in sample.labels.values()], sample.value)
        yield family


def _encodable(text: str) -> str:
    """Returns the text without surrogates, which the library would raise for."""
    return text.encode("utf-8", "replace").decode()
