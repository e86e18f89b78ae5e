"""Outputs of the live metrics, such as files and TensorBoard.

If an output fails, it gets all later states nevertheless: the cause, such as a full disk, may pass.
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
    """Interface of an output of metrics."""

    def write(self, state: JobState) -> None:
        """Shows or writes the job's current state; raises OSError if that fails."""

    def close(self) -> None:
        """Closes the output."""


class Scraped:
    """Output that Prometheus fetches over HTTP."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Serves the metrics at ``endpoint``, which :meth:`close` closes."""
        self._endpoint = endpoint

    def write(self, state: JobState) -> None:
        """Shows the state's metrics to the next scrapes."""
        self.show(lambda: samples(state))

    def show(self, samples: Callable[[], Iterable[Sample]]) -> None:
        """Shows samples to the next scrapes."""
        self._endpoint.show(lambda: exposition(samples()))

    def close(self) -> None:
        """Closes the endpoint."""
        self._endpoint.close()


class TextFile:
    """Output in a file in Prometheus's format, for node_exporter's textfile collector."""

    def __init__(self, path: Path) -> None:
        """Sets the file that each :meth:`write` replaces as a whole."""
        self._path = path

    def write(self, state: JobState) -> None:
        """Replaces the file with the state's metrics."""
        self.show(lambda: samples(state))

    def show(self, samples: Callable[[], Iterable[Sample]]) -> None:
        """Replaces the file with samples."""
        replace_file(self._path, exposition(samples()))

    def close(self) -> None:
        """Does nothing: no file stays open."""


class JsonLines:
    """Writes a JSON line (time, step, figures) to a file for each state with new steps."""

    def __init__(self, path: Path) -> None:
        """Sets the file to append lines to."""
        self._path = path
        self._step = -1
        #: True if only a part of the last line could be written.
        self._torn = False

    def write(self, state: JobState) -> None:
        """Appends a line if all ranks completed a step since the last line."""
        step = step_of(state)
        if step in (-1, self._step):  # -1: a rank has no step yet, as after a restart
            return
        figures = {key: value for key, value in flat(state).items() if math.isfinite(value)}
        line = (
            json.dumps({"time_s": round(state.time_s, 3), "step": step, **figures}).encode() + b"\n"
        )
        if self._torn:
            line = b"\n" + line
        # One write, so that the lines of several hosts do not mix in a shared file.
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
        """Does nothing: no file stays open."""


class TensorBoard:
    """Output of scalars by step for TensorBoard."""

    def __init__(self, directory: Path) -> None:
        """Sets the directory; the first state with steps creates the event file there."""
        self._directory = directory
        self._file: EventFile | None = None
        self._step = -1

    def write(self, state: JobState) -> None:
        """Adds the scalars if all ranks completed a step since the last call."""
        step = step_of(state)
        if step in (-1, self._step):  # -1: a rank has no step yet, as after a restart
            return
        if self._file is None:
            self._file = EventFile(self._directory, state.time_s)
        self._file.add(state.time_s, step, flat(state))
        self._step = step

    def close(self) -> None:
        """Closes the event file."""
        if self._file is not None:
            self._file.close()


def step_of(state: JobState) -> int:
    """Returns the number of the last step that all ranks completed; -1 before the first step.

    Ranks of hosts with an overdue summary (``missing_hosts``) do not count.
    """
    missing = {rank for host in state.missing_hosts if host.summary for rank in host.summary.ranks}
    return min((rank.step for rank in state.ranks if rank.rank not in missing), default=-1)


def show_in(
    output: Output, samples: Callable[[], Iterable[Sample]], complain: Callable[[str], None]
) -> None:
    """Shows samples in ``output``.

    Does nothing for JSON lines and TensorBoard, because these outputs need a step number.
    """
    if not isinstance(output, Scraped | TextFile):
        return
    try:
        output.show(samples)
    except OSError as error:
        complain(f"{type(output).__name__}: {error}")


def write_to(output: Output, state: JobState, complain: Callable[[str], None]) -> None:
    """Writes a state to an output; an OSError goes to ``complain`` and is not raised."""
    try:
        output.write(state)
    except OSError as error:
        complain(f"{type(output).__name__}: {error}")


def exposition(samples: Iterable[Sample]) -> bytes:
    """Returns samples in Prometheus's text format; the samples of one metric must be adjacent."""
    from prometheus_client import generate_latest
    from prometheus_client.registry import Collector

    class Collected(Collector):
        def collect(self) -> Iterator[Metric]:
            return _families(samples)

    return generate_latest(Collected())


def _families(samples: Iterable[Sample]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for metric, group in groupby(samples, key=attrgetter("metric")):
        found = list(group)
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=list(found[0].labels))
        for sample in found:
            family.add_metric([_encodable(text) for text in sample.labels.values()], sample.value)
        yield family


def _encodable(text: str) -> str:
    """Replaces surrogates, for which ``prometheus_client`` raises an error."""
    return text.encode("utf-8", "replace").decode()
