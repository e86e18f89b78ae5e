from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.align.alike_ranks import alike_ranks, sizes_of_groups
from commprof.analysis.collectives.calls import all_start_times, start_times
from commprof.analysis.step.exposure import NO_CORE
from commprof.analysis.step.measured import MeasuredWorld, measured_world
from commprof.analysis.step.rank_parts import RankParts
from commprof.trace.schema import PHASES
from tests.support.builders.exact.drawn import SHAPES, drawn
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.traces import world_run


def world(shape: str, seed: int = 1) -> MeasuredWorld:
    job = drawn(shape, seed, size=4, steps=14).job
    seen = measured_world(world_run(recorded(job, simulate(job))))
    assert seen is not None
    return seen


@pytest.mark.parametrize("shape", SHAPES)
def test_tables_hold_the_parts_of_each_rank(shape: str) -> None:
    seen = world(shape)
    parts = seen.measured
    assert len(parts) == len(seen.ranks)
    assert len(parts.step) > 0
    of_ranks = list(parts)
    for name in ("wall", "exposed", "wait", "in_flight", "no_core", *PHASES):
        expected = np.stack([part.part_ns(name) for part in of_ranks])
        np.testing.assert_array_equal(parts.table(name), expected)
        np.testing.assert_array_equal(RankParts.of(of_ranks).table(name), expected)
        np.testing.assert_array_equal(parts.sums(name), [row.sum() for row in expected])
    for of_rank in (lambda p: p.work_ns, lambda p: p.by_origin_ns, lambda p: p.with_cores_ns):
        np.testing.assert_array_equal(parts.column(of_rank), np.stack(list(map(of_rank, of_ranks))))


@pytest.mark.parametrize("shape", SHAPES)
def test_waiting_of_pairs_is_that_of_each_rank(shape: str) -> None:
    seen = world(shape)
    parts, chosen = seen.measured, np.arange(len(seen.measured.step)) % 3 > 0
    pairs = parts.pair_waits(seen.ranks, chosen, without=NO_CORE)
    rows = np.flatnonzero(chosen)
    expected = np.stack([part.caused[rows].by_rank_ns(without=NO_CORE) for part in parts])
    np.testing.assert_array_equal(pairs.table_ns(), expected)
    for rank in range(pairs.world_size):
        np.testing.assert_array_equal(pairs[:, rank][seen.ranks], expected[:, rank])
    total = np.sum([part.caused_ns[rows] for part in parts], axis=0)
    np.testing.assert_allclose(parts.caused_in_all(chosen), total, rtol=1e-12)
    assert total.any()


@pytest.mark.parametrize("shape", SHAPES)
def test_windows_of_steps_join_to_the_whole(shape: str) -> None:
    parts = world(shape).parts
    cut = len(parts.step) // 3
    numbers = parts.step[:cut], parts.step[cut:]
    joined = RankParts.joined([parts.rows(some).in_one_block() for some in numbers])
    np.testing.assert_array_equal(joined.step, parts.step)
    for one, other in zip(joined, parts, strict=True):
        np.testing.assert_array_equal(one.wall_ns, other.wall_ns)
        np.testing.assert_array_equal(one.host.run_delay_ns, other.host.run_delay_ns)
        np.testing.assert_array_equal(one.caused_ns, other.caused_ns)
    later = parts.since(cut)
    np.testing.assert_array_equal(later.step, numbers[1])
    np.testing.assert_array_equal(later[0].caused_ns, parts[0].caused_ns[cut:])


@pytest.mark.parametrize("shape", SHAPES)
def test_starts_and_group_sizes_of_all_ranks_are_those_of_each(shape: str) -> None:
    seen = world(shape, seed=2)
    ranks = list(zip(seen.traces, seen.tables, strict=True))
    starts = np.concatenate([start_times(*rank) for rank in ranks])
    np.testing.assert_array_equal(all_start_times(seen.traces, seen.tables), starts)
    sizes = [trace.groups[number].size for trace, table in ranks for number in table.group.tolist()]
    np.testing.assert_array_equal(sizes_of_groups(seen.traces, seen.tables), sizes)
    # Without its last call, the first rank has shorter queues than the other ranks.
    shorter = [
        type(table)(*(column[:-1] for column in vars(table).values())) for table in seen.tables[:1]
    ]
    tables = [*shorter, *seen.tables[1:]]
    starts = np.concatenate(list(map(start_times, seen.traces, tables)))
    np.testing.assert_array_equal(all_start_times(seen.traces, tables), starts)
    rows = alike_ranks(seen.traces)
    assert [row.start for row in rows] == [0, *(row.stop for row in rows[:-1])]
    assert rows[-1].stop == len(seen.traces)
