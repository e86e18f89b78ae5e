"""The text that Prometheus scrapes, format 0.0.4, as ``prometheus_client`` writes it.

Only a monitor with such an output imports this: the library takes 8 MB and 0.1 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from commprof.monitor.metrics.metrics import Sample


class _Collected(Collector):
    """Samples that come metric by metric, as a collector."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yields a family per metric."""
        for metric, group in groupby(self._samples, key=attrgetter("metric")):
            found = list(group)
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            made = family(metric.name, metric.help, labels=list(found[0].labels))
            for sample in found:
                made.add_metric([_encodable(text) for text in sample.labels.values()], sample.value)
            yield made


def exposition(samples: Iterable[Sample]) -> bytes:
    """Returns the text of the samples, which come metric by metric."""
    return generate_latest(_Collected(samples))


def _encodable(text: str) -> str:
    """Returns the text without surrogates, which the library would raise for."""
    return text.encode("utf-8", "replace").decode()
