from __future__ import annotations

from pathlib import Path
from typing import Any

from commprof.monitor.state import (
    ArrivalState,
    Bandwidth,
    GradientState,
    HostState,
    JobState,
    Late,
    MonitorState,
    OperationState,
    ProcessState,
    RankState,
    StepTimes,
)
from commprof.trace.host_summary import SeenHost


def times(steps: int = 100, scale: float = 1.0) -> StepTimes:
    """A step has 10 ms data, 20 ms forward, 30 ms backward, 30 ms exposed, and a rest of 10 ms."""
    parts = (0.1, 0.01, 0.02, 0.03, 0.004, 0.006, 0.03, 0.012, 0.015, 0.003, 0.025)
    return StepTimes(steps, *(part * scale for part in parts))


def rank_state(rank: int, **changes: Any) -> RankState:
    values: dict[str, Any] = {
        "rank": rank,
        "host": "node-1",
        "is_local": True,
        "status": "running",
        "step": 249,
        "since_step_s": 0.5,
        "total": times(250, 250.0),
        "recent": times(),
        "operations": {"all_reduce": OperationState(500, 4_000_000, 500, 5.0, 0.01, 0.009, 0.02)},
        "waited_for_s": 2.5,
        "plain_bytes": 8e6,
        "sent_bytes": 2e6,
        "dropped": 0,
        "trace_bytes": 12_345,
        "process": ProcessState(12.5, 400_000_000, 0.25),
        "gradients": GradientState(240, 1.5, 0.25, 0.003),
        "arrivals": ArrivalState(500, 0, 0),
        **changes,
    }
    return RankState(**values)


def missing_host() -> SeenHost:
    at_s, path = 1_699_999_970.0, Path("host_node-2.summary")
    return SeenHost(None, "node-2", "host node-2 (rank 2)", 30.0, at_s, True, path, "cut off")


def job_state(world_size: int = 2, **changes: Any) -> JobState:
    values: dict[str, Any] = {
        "time_s": 1_700_000_000.0,
        "world_size": world_size,
        "backend": "gloo",
        "mode": "full",
        "ranks": tuple(rank_state(rank) for rank in range(world_size)),
        "late": Late(1, 0.012, "backward"),
        "bandwidth": {"all_reduce": Bandwidth(1.25e9, 0.5)},
        "monitor": MonitorState(0.5, 50_000_000, 0.02, 0, ()),
        "host": HostState("node-1", 100.0, 300.0, 16 << 30, 8 << 30, {"lo": (10, 20)}),
        "hosts": (missing_host(),),
        **changes,
    }
    return JobState(**values)
