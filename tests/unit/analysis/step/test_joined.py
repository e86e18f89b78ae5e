from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.equal import differences, flat
from commprof.analysis.detail import world_detail
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.step import joined, measured, meetings
from commprof.analysis.step.joined import RankBlock
from commprof.analysis.step.measured import measured_world
from commprof.analysis.world import world_result
from commprof.report.export import as_json
from commprof.trace import columns, packed
from commprof.trace.columns import Ints
from commprof.trace.schema import Kind
from tests.support.builders.exact.drawn import any_job
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.profiler_traces import document, kernel, rank_events, write
from tests.support.builders.random_run import RandomRun
from tests.support.builders.traces import Rank, world_run
from tests.unit.trace.test_found_steps import SKIPPED, UPDATED, backward, mark, trace_of


def _figures(ranks: list[Rank]) -> dict[str, object]:
    run = world_run(ranks)
    seen = measured_world(run)
    assert seen is not None
    parts = [{**vars(part), "caused": vars(part.caused)} for part in seen.parts]
    figures = {"parts": parts, "detail": world_detail(run, seen)}
    if len(seen.measured[0].step):
        figures["result"] = world_result(run, seen)
    return flat(figures)


def _schedule(seed: int) -> list[Rank]:
    drawn = any_job(seed, 1, False, 16)
    return recorded(drawn.job, simulate(drawn.job))


@pytest.mark.parametrize("seed", range(12))
def test_figures_are_those_of_each_rank_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    join = joined._block

    def noted(*args: object) -> RankBlock:
        block = join(*args)  # type: ignore[arg-type]
        sizes.append(len(block))
        return block

    monkeypatch.setattr(joined, "_block", noted)
    ranks = _schedule(seed) if seed % 2 else RandomRun(seed).ranks
    together = _figures(ranks)
    if seed % 2:
        assert max(sizes) > 1
    count = len(sizes)
    monkeypatch.setattr(joined, "MOST_ROWS", -1)
    alone = _figures(ranks)
    assert len(sizes) == count
    assert not list(differences({"run": alone}, {"run": together}))


def _of_device(rank: int) -> str:
    events = rank_events(rank % 2, ahead_us=3000.0 * rank)
    begin_us = float(events[0]["ts"])
    copy = {**kernel("Memcpy DtoH", begin_us + 920, begin_us + 960), "cat": "gpu_memcpy"}
    within = {**kernel("Memcpy DtoD", begin_us + 560, begin_us + 580), "cat": "gpu_memcpy"}
    early, late = begin_us - 40_000.0, begin_us + 60_000.0
    outside = [kernel("warm", early, early + 20_000), kernel("last", late, late + 20_000)]
    return document([*events, copy, within, *outside], rank, 6)


def test_figures_of_devices_are_those_of_each_rank_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "job", [_of_device(rank) for rank in range(6)])

    def render() -> str:
        return as_json.render(analyse_in_detail(path)[0])

    blocks: list[list[RankBlock]] = []
    join = measured.joined
    monkeypatch.setattr(measured, "joined", lambda traces: [*_noted(join(traces), blocks)])
    together = render()
    monkeypatch.setattr(joined, "MOST_ROWS", -1)
    assert render() == together
    assert [len(block) for block in blocks[0]] == [6]
    assert [len(block) for block in blocks[1]] == [1] * 6


def _noted(blocks: list[RankBlock], into: list[list[RankBlock]]) -> list[RankBlock]:
    into.append(blocks)
    return blocks


@pytest.mark.parametrize("seed", range(8))
def test_meetings_that_are_found_in_parts_are_those_found_at_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = _schedule(seed) if seed % 2 else RandomRun(seed).ranks
    at_once = _figures(ranks)
    monkeypatch.setattr(meetings, "_DENSE", 0)
    monkeypatch.setattr(meetings, "_CHUNK", 3)
    assert not list(differences({"run": at_once}, {"run": _figures(ranks)}))


def test_times_and_numbers_of_ranks_do_not_meet_in_a_block() -> None:
    traces = list(world_run(_schedule(1)).traces.values())
    own = [columns.collectives(trace) for trace in world_run(_schedule(1)).traces.values()]
    (block,) = joined.joined(traces)
    calls = block.join_calls(block.tables)
    rank = np.repeat(np.arange(len(traces)), list(map(len, own)))
    assert (block.rank_at(calls.issue_ns) == rank).all()
    assert (np.diff(columns.steps(block.trace).begin_ns) > 0).all()
    assert len(np.unique(calls.op_id)) == sum(len(np.unique(table.op_id)) for table in own)
    for place, table in enumerate(own):
        mine = slice(block.calls[place], block.calls[place + 1])
        assert (calls.issue_ns[mine] - block.shift_ns[place] == table.issue_ns).all()


@pytest.mark.parametrize("seed", range(6))
def test_tables_of_each_rank_are_those_that_it_has_alone(seed: int) -> None:
    ranks = _schedule(seed) if seed % 2 else RandomRun(seed).ranks
    traces, alone = (list(world_run(ranks).traces.values()) for _ in range(2))
    tables = [table for block in joined.joined(traces) for table in block.tables]
    assert len(tables) == len(alone)
    for trace, table, expected in zip(traces, tables, alone, strict=True):
        assert columns.collectives(trace) is table
        for make in (columns.collectives, columns.phases, columns.waits, columns.run_delays):
            _same(vars(make(trace)), vars(make(expected)))
        counts = columns.host_counts(expected)
        for name, spans in columns.host_counts(trace).items():
            _same(vars(spans), vars(counts[name]))
        passes, own = columns.finalizations(trace), columns.finalizations(expected)
        _same(vars(passes.span), vars(own.span))
        _same({"blocked_ns": passes.blocked_ns}, {"blocked_ns": own.blocked_ns})


def test_steps_that_are_found_for_all_ranks_are_those_of_each_rank_alone(tmp_path: Path) -> None:
    start = mark(5, 0, ends=False)
    passes = [row for begin in (6, 15) for row in backward(begin, begin + 3)]
    of_ranks = [
        [start, mark(10, 0), mark(20, 1)],
        [start, mark(8, 0, UPDATED), mark(10, 1), mark(20, 2), mark(30, 3)],
        [start, mark(10, 0, UPDATED), mark(20, 1, UPDATED)],
        [start, mark(10, 0, UPDATED), mark(15, 0, ends=False), mark(20, 1, SKIPPED)],
        [start, mark(10, 0, UPDATED), mark(30, 2, UPDATED), mark(40, 3, UPDATED)],
        [start, *passes],
        [start],
        [],
    ]
    traces, alone = ([trace_of(tmp_path, *rows) for rows in of_ranks] for _ in range(2))
    joined.joined(traces)
    sources = []
    for trace, expected in zip(traces, map(columns.steps, alone), strict=True):
        found = columns.steps(trace)
        sources.append(found.source)
        assert found.source == expected.source
        for name in ("index", "begin_ns", "end_ns", "thread"):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert sources == [*["declared"] * 2, *["update"] * 3, "backward", *["declared"] * 2]


def _same(found: dict[str, Ints], expected: dict[str, Ints]) -> None:
    for name, column in expected.items():
        assert np.array_equal(found[name], column), name


def test_long_runs_and_ranks_without_steps_are_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traces = list(world_run(_schedule(1)).traces.values())
    monkeypatch.setattr(joined, "_LONGEST_NS", 1)
    blocks = joined.joined(traces)
    assert [len(block) for block in blocks] == [1] * len(traces)
    assert [block.trace for block in blocks] == traces


def test_ranks_with_numbers_too_large_to_move_are_not_joined() -> None:
    ranks = _schedule(1)
    traces = list(world_run(ranks).traces.values())
    records = traces[0].records.copy()
    records["op_id"][records["kind"] == Kind.WAIT] = 2**61
    traces[0] = dataclasses.replace(traces[0], records=records)
    assert [len(block) for block in joined.joined(traces)] == [1] * len(traces)


@pytest.mark.parametrize("native", [True, False])
def test_columns_of_several_ranks_follow_one_another(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(packed, "_unpacking", lambda: None)
    some = [packed.packed(trace.records) for trace in world_run(_schedule(1)).traces.values()]
    for kind in (Kind.ISSUE, Kind.WAIT, Kind.PHASE, Kind.CLOCK):
        for field in ("timestamp_ns", "op_id", "value", "flags", "bytes_in"):
            expected = np.concatenate([records.column(kind, field) for records in some])
            found = packed.columns_of(some, kind, field)
            assert found.dtype == expected.dtype
            assert (found == expected).all()
    cut = [records.between([(0, 2**62)]) for records in some]
    whole, ends = (packed.columns_of(records, Kind.END, "op_id") for records in (some, cut))
    assert (whole == ends).all()
