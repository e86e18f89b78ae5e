from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from commprof.analysis.replay.program import ISSUE, MARK, Program, own_times, programs
from commprof.analysis.replay.program import replayed_steps as steps_of
from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.measured import MeasuredWorld, measured_world
from commprof.trace.ranks import accumulated, firsts
from commprof.trace.schema import PHASES
from tests.support.builders.exact.drawn import any_job
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.random_run import RandomRun
from tests.support.builders.traces import world_run


def _measured(seed: int) -> MeasuredWorld:
    if seed % 2:
        job = any_job(seed, 1, False, 8).job
        ranks = recorded(job, simulate(job))
    else:
        ranks = RandomRun(seed).ranks
    seen = measured_world(world_run(ranks))
    assert seen is not None
    return seen


def _alone(seen: MeasuredWorld, place: int) -> MeasuredWorld:
    only = slice(place, place + 1)
    of_rank = {
        name: getattr(seen, name)[only]
        for name in ("ranks", "recorded", "traces", "parts", "tables")
    }
    return replace(seen, **of_rank)


@pytest.mark.parametrize("seed", range(24))
def test_programs_of_all_ranks_are_those_of_each_rank_alone(seed: int) -> None:
    seen = _measured(seed)
    step = steps_of(seen)[0]
    if not len(step):
        return
    together, first = programs(seen, step), 0
    for place, table in enumerate(seen.tables):
        (alone,) = programs(_alone(seen, place), step)
        program = together[place]
        of_call = (program.kind != MARK) & (program.row >= 0)
        assert np.array_equal(program.row - of_call * first, alone.row)
        for name in ("chained", "after"):
            assert np.array_equal(getattr(program, name) - first, getattr(alone, name))
        for name in ("rank", "begin_ns", "until_ns", "kind", "lag_ns", "border_phase"):
            assert np.array_equal(getattr(program, name), getattr(alone, name))
        for name in ("own_ns", "extra_ns", "border_ns"):
            np.testing.assert_allclose(getattr(program, name), getattr(alone, name), 1e-12, 1e-3)
        first += len(table)


@pytest.mark.parametrize("seed", range(24))
def test_phases_of_all_ranks_get_their_wanted_times_as_those_of_one_would(seed: int) -> None:
    seen = _measured(seed)
    step = steps_of(seen)[0]
    if not len(step):
        return
    made = programs(seen, step)
    recorded_ns = made.own_by_phase_ns()
    random = np.random.default_rng(seed)
    wanted = recorded_ns * random.uniform(0.5, 2, recorded_ns.shape)
    moved = np.split(made.with_own(wanted), made.events.first[1:-1])
    for place, program in enumerate(made):
        factor = np.divide(
            wanted[place],
            recorded_ns[place],
            out=np.ones_like(wanted[place]),
            where=recorded_ns[place] > 0,
        )
        np.testing.assert_allclose(moved[place], _stretched(program, factor), 1e-9, 1e-3)


def _stretched(program: Program, factor: np.ndarray) -> np.ndarray:
    border_ns = program.border_ns
    marks = program.own_ns[program.kind == MARK].reshape(-1, 2)
    middle = (border_ns[:-1] + border_ns[1:]) / 2
    step = np.clip(np.searchsorted(marks[:, 0], middle, side="right") - 1, 0, len(marks) - 1)
    inside = (marks[step, 0] <= middle) & (middle < marks[step, 1])
    assert program.border_phase.max() < len(PHASES)
    longer = np.where(inside, factor[step, program.border_phase], 1.0)
    moved = border_ns[0] + np.concatenate(([0.0], np.cumsum(np.diff(border_ns) * longer)))
    result: np.ndarray = np.interp(program.own_ns, border_ns, moved)
    return result


@pytest.mark.parametrize("seed", range(12))
def test_own_time_is_the_time_less_that_of_the_waits(seed: int) -> None:
    seen = _measured(seed)
    random = np.random.default_rng(seed)
    for trace in seen.traces:
        exposed = exposures_of(trace)
        if not len(exposed):
            continue
        begin_ns = int(exposed.begin_ns[0]) + 1000
        times = np.sort(random.integers(begin_ns, int(exposed.end_ns[-1]) + 5000, 40))
        ends = np.maximum.accumulate(exposed.end_ns)
        begins = np.maximum(exposed.begin_ns, np.append(exposed.begin_ns[:1], ends[:-1]))
        ends = np.maximum(begins, ends)
        rate = exposed.waited_ns / np.maximum(1, ends - begins)
        for time_ns, own in zip(times, own_times(trace, begin_ns, times), strict=True):
            stood = np.clip(np.minimum(ends, time_ns) - np.maximum(begins, begin_ns), 0, None)
            assert own == pytest.approx(time_ns - begin_ns - float((stood * rate).sum()), abs=1e-3)


def test_rows_of_each_rank_are_accumulated_apart() -> None:
    values = np.array([3, 1, 2, 5, 4, 6, 1])
    for lengths in ([3, 1, 0, 3], [7], [2, 2, 3]):
        first = firsts(lengths)
        cuts = [values[a:b] for a, b in itertools.pairwise(first.tolist())]
        for ufunc in (np.add, np.maximum):
            expected = np.concatenate([ufunc.accumulate(cut) for cut in cuts])
            assert np.array_equal(accumulated(ufunc, values, first), expected)
    assert not len(accumulated(np.add, values[:0], firsts([])))


def test_events_that_are_issues_move_with_their_pieces() -> None:
    seen = _measured(0)
    made = programs(seen, steps_of(seen)[0])
    assert (made.events.kind == ISSUE).any()
    np.testing.assert_allclose(made.with_own(made.own_by_phase_ns()), made.events.own_ns, 1e-9)
