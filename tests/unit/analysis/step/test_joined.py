"""Ranks that are computed in blocks have the figures that each has alone."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scale.equal import differences, flat
from commprof.analysis.detail import world_detail
from commprof.analysis.step import joined
from commprof.analysis.step.joined import RankBlock
from commprof.analysis.step.measured import measured_world
from commprof.analysis.world import world_result
from commprof.trace import columns
from tests.support.builders.exact.drawn import any_job
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.random_run import RandomRun
from tests.support.builders.traces import Rank, world_run


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
    monkeypatch.setattr(joined, "_MOST_CALLS", -1)
    alone = _figures(ranks)
    assert len(sizes) == count
    assert not list(differences({"run": alone}, {"run": together}))


def test_times_and_numbers_of_ranks_do_not_meet_in_a_block() -> None:
    traces = list(world_run(_schedule(1)).traces.values())
    tables = [columns.collectives(trace) for trace in traces]
    (block,) = joined.joined(traces, tables)
    calls = block.join_calls(tables)
    rank = np.repeat(np.arange(len(traces)), list(map(len, tables)))
    assert (block.rank_at(calls.issue_ns) == rank).all()
    assert (np.diff(columns.steps(block.trace).begin_ns) > 0).all()
    assert len(np.unique(calls.op_id)) == sum(len(np.unique(table.op_id)) for table in tables)
    for place, table in enumerate(tables):
        mine = slice(block.calls[place], block.calls[place + 1])
        assert (calls.issue_ns[mine] - block.shift_ns[place] == table.issue_ns).all()


def test_long_runs_and_ranks_without_steps_are_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traces = list(world_run(_schedule(1)).traces.values())
    tables = [columns.collectives(trace) for trace in traces]
    monkeypatch.setattr(joined, "_LONGEST_NS", 1)
    blocks = joined.joined(traces, tables)
    assert [len(block) for block in blocks] == [1] * len(traces)
    assert [block.trace for block in blocks] == traces
