from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.runs import write_run
from commprof.analysis import exchange
from commprof.analysis.collectives import communication as exchanges
from commprof.analysis.collectives.communication import communication
from commprof.analysis.exchange import small_calls
from commprof.analysis.findings import findings
from commprof.analysis.late.incidents import WatchedCalls, find_incidents
from commprof.analysis.mean_step import mean_step
from commprof.analysis.recording import world_recording
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.step import windows
from commprof.analysis.step.breakdown import Breakdown
from commprof.analysis.step.measured import MeasuredWorld, measured_world
from commprof.analysis.step.timing import step_timing
from commprof.analysis.strategies import strategy_rows
from commprof.analysis.world import world_result
from commprof.trace import columns
from commprof.trace.run.run_directory import WorldRun, read_context, read_world
from commprof.trace.schema import FLAG_FAILED, Kind
from tests.support.builders.exact.drawn import any_job
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.traces import Rank, world_run

_CLOSE_NS = 1e-3
#: In pipelines, at most this fraction of the waiting begins before the first step of a window.
_MOST_MOVED = 1e-3


def _run(seed: int) -> WorldRun:
    job = any_job(seed, 1, False, 8).job
    return world_run(recorded(job, simulate(job)))


def _at_once(run: WorldRun, monkeypatch: pytest.MonkeyPatch) -> tuple[MeasuredWorld, WatchedCalls]:
    return _measured(run, monkeypatch, 10**9, 10**9)


def _measured(
    run: WorldRun, monkeypatch: pytest.MonkeyPatch, long: int, window: int
) -> tuple[MeasuredWorld, WatchedCalls]:
    monkeypatch.setattr(windows, "LONG_CALLS", long)
    monkeypatch.setattr(windows, "WINDOW_CALLS", window)
    monkeypatch.setattr(windows, "SAMPLE_CALLS", window)
    calls = WatchedCalls()
    seen = measured_world(run, calls.add)
    assert seen is not None
    return seen, calls


def _calls(run: WorldRun) -> int:
    return sum(len(columns.collectives(trace)) for trace in run.traces.values())


def _differences(ours: Breakdown, expected: Breakdown) -> list[str]:
    found = []
    for holder in ("", "work", "on_device", "host"):
        tables = [getattr(part, holder) if holder else part for part in (ours, expected)]
        for field in dataclasses.fields(tables[0]):
            columns_ = [getattr(table, field.name) for table in tables]
            if isinstance(columns_[0], np.ndarray) and not np.allclose(
                *columns_, rtol=0, atol=_CLOSE_NS, equal_nan=True
            ):
                found.append(field.name)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_parts_of_all_steps_are_those_of_the_whole_run(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(seed)
    whole, calls = _at_once(run, monkeypatch)
    assert whole.all_steps is whole
    seen, watched = _measured(_run(seed), monkeypatch, 1, _calls(run) // 5)
    cut = seen.all_steps
    assert cut is not seen
    assert (cut.warmup, cut.merged, cut.ranks) == (whole.warmup, whole.merged, whole.ranks)
    for ours, expected in zip(cut.parts, whole.parts, strict=True):
        assert _differences(ours, expected) == []
        assert ours.caused.wait_ns.sum() == pytest.approx(expected.caused.wait_ns.sum())
    moved_ns = sum(
        float(np.abs(ours.caused_ns - expected.caused_ns).sum()) / 2
        for ours, expected in zip(cut.parts, whole.parts, strict=True)
    )
    assert moved_ns <= _MOST_MOVED * sum(float(part.caused.wait_ns.sum()) for part in whole.parts)
    assert watched.mismatch_count == calls.mismatch_count
    assert watched.gbit_per_s == pytest.approx(calls.gbit_per_s)
    anomalies = [find_incidents(run, *pair).anomalies for pair in ((seen, watched), (whole, calls))]
    assert anomalies[0] == anomalies[1]


def test_a_sample_says_of_which_steps_it_is_and_has_their_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", ranks=4, steps=120, calls=6)
    run = read_world(tmp_path / "run", 4)
    whole, _ = _at_once(run, monkeypatch)
    seen, _ = _measured(run, monkeypatch, 1, 4 * 6 * 30)
    stretches = world_recording(run, seen).sampled_steps
    numbers = [step for first, last in stretches for step in range(first, last + 1)]
    assert seen.measured[0].step.tolist() == numbers
    assert [last - first + 1 for first, last in stretches] == [10, 10, 10]
    assert world_recording(run, whole).sampled_steps == ()
    # An exchange may be in a step that the sample does not hold.
    monkeypatch.setattr(exchanges, "trained_apart", lambda *_, **__: "apart")
    assert exchanges._apart(run, whole) == "apart"
    assert exchanges._apart(run, seen) is None
    sampled, all_calls = (communication(run, world).collectives for world in (seen, whole))
    assert [row.kind.op for row in sampled] == [row.kind.op for row in all_calls]
    assert [row.calls_per_step for row in sampled] == [row.calls_per_step for row in all_calls]


def test_a_long_run_names_its_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", ranks=2, steps=40, calls=4)
    monkeypatch.setattr(windows, "LONG_CALLS", 300)
    monkeypatch.setattr(windows, "WINDOW_CALLS", 80)
    monkeypatch.setattr(windows, "SAMPLE_CALLS", 80)
    result, (detail,) = analyse_in_detail(tmp_path / "run")
    (said,) = [text for text in result.remarks if "is long" in text]
    assert "steps 15 to 24 of 39 measured steps" in said
    assert len(detail.steps) == 39
    result, _ = analyse_in_detail(tmp_path / "run", all_calls=True)
    assert not [text for text in result.remarks if "is long" in text]


def test_a_run_of_very_many_steps_keeps_the_parts_of_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", ranks=4, steps=1200, calls=3)
    run = read_world(tmp_path / "run", 4)
    whole, calls = _at_once(run, monkeypatch)
    monkeypatch.setattr(windows, "KEPT_ROWS", 1)
    monkeypatch.setattr(windows, "KEPT_STEPS", 640)
    seen, watched = _measured(run, monkeypatch, 1, 4 * 3 * 100)
    cut = seen.all_steps
    rows = np.isin(whole.parts[0].step, cut.parts[0].step)
    assert (len(cut.parts[0].step), cut.warmup) == (640, whole.warmup)
    for ours, expected in zip(cut.parts, whole.parts, strict=True):
        assert _differences(ours, expected.rows(rows)) == []
    assert watched.mismatch_count == calls.mismatch_count
    recording, timing = world_recording(run, seen), step_timing(cut)
    assert recording.left_out_steps == 1200 - 640
    of_all = step_timing(whole.all_steps)
    assert recording.mean_of_all_ms == pytest.approx(of_all.step_mean_ms)
    assert timing.measured_steps + recording.left_out_steps == of_all.measured_steps
    begins = np.flatnonzero(np.diff(cut.measured[0].step, prepend=-1) != 1)
    for name in ("wall", "exposed", "wait", "transfer", "forward"):
        ours, expected = (
            np.mean([part.part_ns(name) for part in world.measured], axis=0)
            for world in (cut, whole)
        )
        means = [stretch.mean() for stretch in np.split(ours, begins[1:])]
        assert len(means) == 64
        reach = 4 * np.std(means, ddof=1) / np.sqrt(len(means))
        assert abs(np.mean(means) - expected.mean()) <= reach
    (said,) = [text for text in _caveats(tmp_path / "run", run, seen) if "is long" in text]
    assert "from 639 of 1,199 measured steps" in said


def test_warm_up_may_end_in_steps_whose_parts_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, begin_ns = Rank(), 1000
    for step in range(640):
        # The first five steps are the warm-up. The 64 kept steps are 0, 10, 20 and so on.
        length_ns = 90_000 if step < 5 else 1000
        rank.collective(step, begin_ns + 100, begin_ns + 200)
        rank.step(begin_ns, begin_ns + length_ns)
        begin_ns += length_ns
    run = world_run([rank])
    monkeypatch.setattr(windows, "KEPT_ROWS", 1)
    monkeypatch.setattr(windows, "KEPT_STEPS", 64)
    seen, _ = _measured(run, monkeypatch, 1, 100)
    recording = world_recording(run, seen)
    assert seen.all_steps.measured[0].step[0] == 10
    assert recording.mean_of_all_ms == pytest.approx(1e-3)
    assert recording.left_out_steps == 630 - 63


def _caveats(directory: Path, run: WorldRun, seen: MeasuredWorld) -> list[str]:
    return [fact.caveat for fact in findings(read_context(directory), world_result(run, seen))]


def test_calls_per_step_of_a_long_run_are_those_of_its_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", ranks=2, steps=40, calls=4, late_ms=0.0)
    monkeypatch.setattr(exchange, "_SMALL_BYTES", 2**40)
    monkeypatch.setattr(exchange, "_MANY", 2)
    monkeypatch.setattr(windows, "LONG_CALLS", 300)
    monkeypatch.setattr(windows, "WINDOW_CALLS", 80)
    monkeypatch.setattr(windows, "SAMPLE_CALLS", 80)
    for all_calls in (True, False):
        result, (detail,) = analyse_in_detail(tmp_path / "run", all_calls=all_calls)
        (operation,) = strategy_rows([result])[0].operations
        (row,) = result.worlds[0].communication.collectives
        assert row.calls == 2 * 4 * (39 if all_calls else 10)
        assert (operation.calls, operation.size_bytes) == (4, row.total_bytes / row.calls * 4)
        small = small_calls(result.worlds[0], mean_step(detail))
        assert small is not None
        assert small.calls_per_step == 4


def test_failed_calls_of_a_long_run_are_those_of_all_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", ranks=2, steps=40, calls=4)
    run = read_world(tmp_path / "run", 2)
    records = run.traces[1].records.copy()
    records["flags"][np.flatnonzero(records["kind"] == Kind.END)[[-1, -2]]] |= FLAG_FAILED
    run.traces[1] = dataclasses.replace(run.traces[1], records=records)
    seen, _ = _measured(run, monkeypatch, 1, 80)
    assert world_recording(run, seen).failed_calls == (("all_reduce", 2),)
    (fact,) = [
        f
        for f in findings(read_context(tmp_path / "run"), world_result(run, seen))
        if f.kind == "failed_calls"
    ]
    assert fact.figures == {"calls": 2, "operations": ["all_reduce"]}


def test_what_another_tool_recorded_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "LONG_CALLS", 1)
    traces = [*_run(2).traces.values()]
    assert windows.windows_of(traces) is not None
    foreign = [
        dataclasses.replace(trace, metadata={**trace.metadata, "capture": "torch.profiler"})
        for trace in traces
    ]
    assert windows.windows_of(foreign) is None
    records = traces[0].records.copy()
    records["kind"][-1] = Kind.NCCL_OP
    of_nccl = dataclasses.replace(traces[0], records=records)
    assert windows.windows_of([of_nccl, *traces[1:]]) is None


def test_a_stretch_reaches_further_at_both_ends() -> None:
    trace = _run(3).traces[0]
    steps = columns.steps(trace)
    some = windows.stretch(trace, [steps.index[5:8]])
    assert columns.steps(some).index.tolist() == steps.index[3:9].tolist()
    two = windows.stretch(trace, [steps.index[5:8], steps.index[8:9]])
    assert columns.steps(two).index.tolist() == steps.index[3:10].tolist()
    assert len(columns.steps(windows.stretch(trace, [steps.index]))) == len(steps)
