"""Always-on mode over many collectives: memory and trace stay as they are.

``python benchmarks/long_run.py [COLLECTIVES]``, 1,000,000 if not given. The fake backend does
nothing, so this is the highest rate that one thread can issue. Prints the figures as JSON and
fails if memory grew by 1 MB between a tenth of the run and its end, if the trace reached 1 MB, or
if the summary does not account for every collective. Figures are of this process alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import commprof
from commprof import _native
from commprof.trace.reader import read_trace

STEPS = 1000


def rss_bytes() -> int:
    """Memory of this process that is in RAM now, without the files it maps."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def measure(directory: Path, collectives: int) -> dict[str, Any]:
    """Runs that many in steps, under capture; returns what became of memory and trace."""
    tensor, per_step = torch.ones(4), max(1, collectives // STEPS)
    steps = max(1, collectives // per_step)
    rss = {}
    with commprof.profile(directory, mode="always-on") as profiler:
        begin = time.monotonic()
        for step in range(steps):
            for _ in range(per_step):
                dist.all_reduce(tensor)
            profiler.step()
            if step in (steps // 10, steps - 1):
                rss[step] = rss_bytes()
        duration_s = time.monotonic() - begin
        stats = profiler.stats()
    path = directory / "rank_0.trace"
    summary = read_trace(path).summary
    assert summary is not None
    return {
        "collectives": steps * per_step,
        "counted": sum(one.count for one in summary.operations),
        "completed": sum(one.duration.count for one in summary.operations),
        "dropped_records": summary.dropped,
        "collectives_per_s": round(steps * per_step / duration_s),
        "rss_at_10_percent_bytes": min(rss.items())[1],
        "rss_growth_bytes": max(rss.items())[1] - min(rss.items())[1],
        "trace_bytes": path.stat().st_size,
        "records_written": stats.records_written,
    }


def check(figures: dict[str, Any]) -> None:
    """Raises AssertionError naming the figures if one of the promises was broken."""
    assert figures["rss_growth_bytes"] < 1_000_000, figures
    assert figures["trace_bytes"] < 1_000_000, figures
    assert figures["records_written"] == 0, figures
    # An issue and a completion each; a dropped record is one of the two.
    lost = 2 * figures["collectives"] - figures["counted"] - figures["completed"]
    assert 0 <= lost <= 2 * figures["dropped_records"], figures


def main() -> None:
    """See the module."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    collectives = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    # The other rank never writes its arrivals down: what waits for them must have a bound.
    assert _native.native is not None
    _native.native.arrivals_create(1, 0)
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), collectives)
    dist.destroy_process_group()
    print(json.dumps(figures, indent=1))
    check(figures)


if __name__ == "__main__":
    main()
