from __future__ import annotations

from pathlib import Path

from benchmarks.recordings.many_ranks import TracedJob, write_dumps, write_traces
from benchmarks.recordings.speed import INPUTS, demands
from commprof.analysis.late.dumped_hang import diagnosis
from commprof.recordings.profiler import read_recording
from commprof.trace.columns import collectives


def test_traces_hold_the_calls_of_every_rank(tmp_path: Path) -> None:
    size_bytes = write_traces(tmp_path / "traces", TracedJob(3, 4, 2, 1))
    assert size_bytes == sum(path.stat().st_size for path in (tmp_path / "traces").iterdir())
    recording = read_recording(tmp_path / "traces")
    assert recording is not None
    assert recording.world_size == len(recording.traces) == 3
    for trace in recording.traces.values():
        calls = collectives(trace)
        assert calls.seq.tolist() == list(range(8))
        assert (calls.end_ns > calls.issue_ns).all()
    assert any("8 collectives agree across ranks within" in said for said in recording.problems)


def test_dumps_hang_because_of_rank_1(tmp_path: Path) -> None:
    write_dumps(tmp_path / "dumps", 16, 40)
    found = diagnosis(tmp_path / "dumps")
    assert found.read.dumps == 16
    assert [one.rank for one in found.culprits] == [1]
    assert len(found.victims) == 15


def test_time_and_memory_are_judged_for_what_was_measured() -> None:
    figures = {"new": {"cpu_s": INPUTS["small"].cpu_s + 0.1, "memory_mb": 1.0}}
    assert [one.met for one in demands({"small": figures})] == [False, True]
