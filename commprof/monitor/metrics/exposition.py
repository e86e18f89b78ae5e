"""The text that Prometheus scrapes, format 0.0.4, as ``prometheus_client`` writes it.

The library takes 8 MB and 0.1 s: it is imported with the first text, so never in a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from commprof.monitor.metrics.metrics import Sample

if TYPE_CHECKING:
    from prometheus_client import Metric


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
