from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commprof.commands import main
from tests.support.machines.ranks import run_module
from tests.support.ranks.torch_profiled import COLLECTIVES

RANKS = 2


@pytest.fixture
def events(tmp_path: Path) -> list[dict[str, Any]]:
    run_module("tests.support.ranks.torch_profiled", [str(tmp_path)], RANKS)
    output = tmp_path / "both.json"
    torch_traces = [str(tmp_path / f"torch_{rank}.json.gz") for rank in range(RANKS)]
    assert main(["trace", str(tmp_path), "-o", str(output), "--merge", *torch_traces]) == 0
    return list(json.loads(output.read_text())["traceEvents"])


def processes(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


@pytest.mark.slow
@pytest.mark.measures
def test_torch_profiler_and_commprof_record_collectives_at_the_same_times(
    events: list[dict[str, Any]],
) -> None:
    names = processes(events)
    for rank in range(RANKS):
        of_torch = {pid for pid, name in names.items() if name.startswith(f"rank {rank}, torch")}
        calls = [e for e in events if e["pid"] in of_torch and e["name"] == "c10d::allreduce_"]
        calls = [call for call in calls if call["ph"] == "X"]
        issued = [e for e in events if e.get("cat") == "collectives in flight" and e["pid"] == rank]
        assert len(calls) == len(issued) == COLLECTIVES
        for call, collective in zip(calls, issued, strict=True):
            # The issue is recorded inside the dispatcher's call; the two clocks may differ by 200
            # µs.
            assert call["ts"] - 200 <= collective["ts"] <= call["ts"] + call["dur"] + 200
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert min(times) >= 0
    assert max(times) < 60e6
