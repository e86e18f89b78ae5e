from __future__ import annotations

import argparse
import json
from pathlib import Path

from commprof.commands.trace import TraceCommand
from commprof.trace.run.run_directory import read_context
from tests.support.builders import trace_bytes
from tests.support.builders.traces import MS, Rank


def replica(folder: Path, number: int) -> None:
    """Writes the trace of one replica, which is rank 0 of a job of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = Rank(0, 1, groups={})
    for step in range(4):
        at = step * 10 * MS
        rank.collective(step, at + (2 + number) * MS, at + 5 * MS, bytes=4000)
        rank.step(at, at + 10 * MS)
    group = trace_bytes.group(1, name="", rank=number, size=2, backend="gloo")
    blocks = [
        trace_bytes.document(trace_bytes.GROUP_BLOCK, {**group, "token": "a1b2c3"}),
        trace_bytes.block(trace_bytes.RECORDS_BLOCK, rank.records().tobytes()),
        trace_bytes.end(0),
    ]
    named = {**rank.metadata, "replica": f"r{number}"}
    (folder / "rank_0.trace").write_bytes(trace_bytes.trace(*blocks, **named))


def test_a_timeline_shows_every_replica(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "t.json"
    replica(run, 0)
    replica(run / "job_2", 1)
    assert read_context(run)["world_sizes"] == [2]
    command, parser = TraceCommand(), argparse.ArgumentParser()
    command.prepare_parser(parser)
    assert command.run(parser.parse_args([str(run), "-o", str(output)])) == 0
    events = json.loads(output.read_text())["traceEvents"]
    named = [e["args"]["name"] for e in events if e.get("name") == "process_name"]
    assert len(named) == 2
    shown = {e["pid"] for e in events if str(e.get("name", "")).startswith("all_reduce")}
    assert len(shown) == 2
