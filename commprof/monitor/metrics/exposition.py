"""The text that Prometheus scrapes, format 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from commprof.monitor.metrics.metrics import Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(samples: Iterable[Sample]) -> bytes:
    """The samples, which come metric by metric."""
    lines: list[str] = []
    last = None
    for sample in samples:
        metric = sample.metric
        if metric is not last:
            lines.append(f"# HELP {metric.name} {_escaped(metric.help, quotes=False)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            last = metric
        labels = ",".join(f'{key}="{_escaped(text)}"' for key, text in sample.labels.items())
        lines.append(f"{metric.name}{'{' + labels + '}' if labels else ''} {_number(sample.value)}")
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _escaped(text: str, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
