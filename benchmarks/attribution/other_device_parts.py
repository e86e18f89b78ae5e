"""Prints the parts of a GPU's time that HolisticTraceAnalysis and TraceLens find in one trace.

``device_parts.py`` runs this file with a Python that has both tools. The output is a JSON object
with the times in ms by tool. A tool that cannot be imported is left out.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.metadata
import io
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    path = sys.argv[1]
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # otherwise each kernel may lose 1 us
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for name, measure in (("hta", _hta), ("tracelens", _tracelens)):
            with contextlib.suppress(ImportError):
                found[name] = measure(path)
    print(json.dumps(found))


def _hta(path: str) -> dict[str, Any]:
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    analysis = TraceAnalysis({0: path}, str(Path(path).parent), include_last_profiler_step=True)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    names = ("compute", "non_compute", "idle", "kernel")
    return {
        "version": importlib.metadata.version("HolisticTraceAnalysis"),
        **{f"{name}_ms": float(row[f"{name}_time(us)"]) / 1000 for name in names},
    }


def _tracelens(path: str) -> dict[str, Any]:
    from TraceLens.TreePerf.gpu_event_analyser import (  # type: ignore[import-not-found]
        PytorchGPUEventAnalyser,
    )

    text = gzip.decompress(Path(path).read_bytes())
    events = json.loads(text)["traceEvents"]
    for number, event in enumerate(events):
        event["UID"] = number
    figures = PytorchGPUEventAnalyser(events).compute_metrics()
    return {f"{name.removesuffix('_time')}_ms": ms / 1000 for name, ms in figures.items()}


if __name__ == "__main__":
    main()
