from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from commprof.analysis.align.arrivals import Arrivals, match_arrivals
from commprof.analysis.align.matching import match
from commprof.analysis.step.breakdown import Breakdown, breakdown, mean_of_known
from commprof.analysis.step.rank_parts import RankParts
from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase
from tests.support.builders.random_run import RandomRun
from tests.support.builders.traces import THREAD, Rank

PARTS = ("data", "forward", "backward", "exposed", "optimizer", "other")


def break_down(*ranks: Rank) -> list[Breakdown]:
    return break_traces_down([rank.trace() for rank in ranks])


def break_traces_down(traces: list[Trace]) -> list[Breakdown]:
    tables = [columns.collectives(trace) for trace in traces]
    arrivals: list[Arrivals | None] = [*match_arrivals(match(traces, tables), traces, tables)]
    return [
        breakdown(trace, table, arrival, len(traces))
        for trace, table, arrival in zip(traces, tables, arrivals, strict=True)
    ]


def values(part: Breakdown, *names: str) -> list[list[float]]:
    return [part.part_ns(name).tolist() for name in names]


def one_step() -> Rank:
    rank = Rank()
    rank.step(0, 1000)
    rank.phase(Phase.DATA, 0, 100)
    rank.phase(Phase.FORWARD, 110, 310)
    rank.phase(Phase.BACKWARD, 320, 720)
    rank.phase(Phase.OPTIMIZER, 800, 950)
    return rank


def test_time_in_no_declared_phase_is_other_time() -> None:
    (part,) = break_down(one_step())
    assert values(part, *PARTS) == [
        [100.0], [200.0], [400.0], [0.0], [150.0], [150.0],
    ]  # fmt: skip
    assert values(part, "wall", "wait", "transfer", "hidden") == [
        [1000.0], [0.0], [0.0], [0.0],
    ]  # fmt: skip


def test_waiting_is_subtracted_from_the_phase_it_happened_in() -> None:
    rank = one_step()
    rank.wait(rank.collective(0, 200, 250), 210, 250)
    rank.collective(1, 500, 700, graph_task=0)
    rank.finalize(600, 720, cpu=20)
    rank.wait(rank.collective(2, 740, 780), 740, 780)
    (part,) = break_down(rank)
    assert values(part, *PARTS) == [
        [100.0], [160.0], [300.0], [180.0], [150.0], [110.0],
    ]  # fmt: skip


def test_waiting_over_the_bound_of_a_phase_is_shared_out() -> None:
    rank = Rank()
    rank.phase(Phase.FORWARD, 10, 30)
    rank.wait(rank.collective(0, 20, 60), 25, 60)
    rank.wait(rank.collective(1, 60, 75), 65, 75)
    rank.phase(Phase.BACKWARD, 70, 90)
    rank.phase(Phase.OPTIMIZER, 110, 120)
    rank.phase(Phase.DATA, 120, 130)
    rank.phase(Phase.FORWARD, 130, 150)
    rank.wait(rank.collective(2, 100, 145), 115, 145)
    rank.step(0, 100)
    rank.step(100, 200)
    (part,) = break_down(rank)
    assert values(part, *PARTS) == [
        [0.0, 0.0], [15.0, 5.0], [15.0, 0.0], [45.0, 30.0], [0.0, 5.0], [25.0, 60.0],
    ]  # fmt: skip


def test_pauses_are_attributed_to_the_phase_they_lie_in() -> None:
    rank = one_step()
    rank.wait(rank.collective(0, 200, 250), 210, 250)
    rank.pause(90, 120)
    rank.pause(205, 260)
    rank.pause(990, 1010)
    (part,) = break_down(rank)
    assert part.host.paused_ns.tolist() == [[20.0, 10.0, 25.0, 0.0, 0.0]]
    # The work of a phase includes its pauses; ``by_origin_ns`` has pauses in its last column.
    assert part.work_ns[:, 0].tolist() == [150.0, 100.0, 160.0, 400.0, 150.0]
    assert part.by_origin_ns[:, 0].tolist() == [130.0, 90.0, 135.0, 400.0, 150.0, 55.0]
    assert part.by_origin_ns.sum() == part.wall_ns - part.exposed_ns


def test_hidden_time_is_the_union_in_flight_minus_exposed_time() -> None:
    rank = Rank()
    rank.step(0, 1000)
    rank.collective(0, 100, 400)
    rank.collective(1, 200, 300)
    third = rank.collective(2, 350, 500)
    fourth = rank.collective(3, 600, 700)
    rank.wait(third, 450, 500)
    rank.wait(fourth, 600, 700)
    (part,) = break_down(rank)
    assert values(part, "exposed", "hidden") == [[150.0], [350.0]]


def test_communication_over_a_step_boundary_is_hidden_in_both_steps() -> None:
    rank = Rank()
    rank.step(0, 1000)
    rank.step(1000, 2000)
    rank.step(2000, 3000)
    rank.wait(rank.collective(0, 900, 2100), 2050, 2100)
    (part,) = break_down(rank)
    assert values(part, "hidden", "exposed") == [[100.0, 1000.0, 50.0], [0.0, 0.0, 50.0]]


def test_hidden_time_is_never_negative() -> None:
    # An end of 0 means that the collective's end was not recorded.
    rank = Rank()
    rank.step(0, 1000)
    rank.wait(rank.collective(0, 100, 0), 100, 300)
    (part,) = break_down(rank)
    assert values(part, "hidden", "exposed") == [[0.0], [200.0]]


def test_phases_and_waits_outside_of_steps_are_not_counted() -> None:
    rank = Rank()
    rank.wait(rank.collective(0, 10, 90), 20, 90)
    rank.phase(Phase.DATA, 10, 90)
    rank.step(100, 200)
    rank.step(400, 500)
    rank.wait(rank.collective(1, 250, 300), 250, 300)
    (part,) = break_down(rank)
    assert values(part, "exposed", "data", "hidden", "other") == [
        [0, 0],
        [0, 0],
        [0, 0],
        [100, 100],
    ]


def test_a_wait_that_begins_at_the_end_of_the_last_step_is_not_counted() -> None:
    rank = one_step()
    rank.wait(rank.collective(0, 900, 1100), 1000, 1100)
    (part,) = break_down(rank)
    assert values(part, "exposed", "other") == [[0.0], [150.0]]


def test_a_phase_across_a_step_boundary_is_divided_between_the_steps() -> None:
    rank = Rank()
    rank.step(0, 100)
    rank.step(100, 200)
    rank.phase(Phase.DATA, 80, 130)
    (part,) = break_down(rank)
    assert values(part, "data", "other") == [[20, 0], [80, 100]]


def test_a_wait_across_a_step_boundary_is_subtracted_only_from_the_first_step_s_phases() -> None:
    rank = Rank()
    rank.step(0, 100)
    rank.step(100, 200)
    rank.phase(Phase.OPTIMIZER, 80, 100)
    rank.phase(Phase.FORWARD, 100, 150)
    rank.wait(rank.collective(0, 80, 110), 90, 110)
    (part,) = break_down(rank)
    assert values(part, "exposed", "optimizer", "forward") == [[20, 0], [10, 0], [0, 50]]


def test_phases_and_waits_of_other_threads_are_not_counted() -> None:
    rank = one_step()
    rank.phase(Phase.DATA, 0, 900, thread=THREAD + 5)
    rank.wait(rank.collective(0, 10, 700), 20, 700, thread=THREAD + 5)
    (part,) = break_down(rank)
    assert values(part, "data", "exposed", "hidden") == [[100.0], [0.0], [690.0]]


def test_run_delay_of_a_finalisation_is_part_of_exposed_time() -> None:
    rank = one_step()
    rank.collective(0, 500, 640, graph_task=0)
    rank.finalize(600, 720, cpu=20, run_delay=70)
    (part,) = break_down(rank)
    assert values(part, "no_core", "exposed") == [[70.0], [100.0]]


def test_run_delay_is_unknown_without_a_finalisation() -> None:
    rank = one_step()
    rank.wait(rank.collective(0, 500, 640), 600, 640)
    (part,) = break_down(rank)
    assert np.isnan(part.no_core_ns).all()


def test_waiting_of_each_step_is_attributed_to_the_last_rank() -> None:
    ranks = [Rank(rank, 3) for rank in range(3)]
    issues = [(10, 30, 20), (110, 115, 150)]
    for rank in ranks:
        for step, issue in enumerate(issues):
            rank.step(100 * step, 100 * step + 100)
            at, end = issue[rank.rank], 100 * step + 60
            rank.wait(rank.collective(step, at, end), at, end)
    parts = break_down(*ranks)
    assert [part.wait_ns.tolist() for part in parts] == [[20, 40], [0, 35], [10, 0]]
    assert [part.transfer_ns.tolist() for part in parts] == [[30, 10], [30, 10], [30, 10]]
    assert sum(part.waited_for_ns for part in parts).tolist() == [[0, 30, 0], [0, 0, 75]]


def test_without_a_common_clock_wait_and_transfer_are_unknown() -> None:
    trace = one_step()
    trace.wait(trace.collective(0, 200, 250), 210, 250)
    part = breakdown(trace.trace(), columns.collectives(trace.trace()), None, 1)
    assert np.isnan(part.wait_ns).all()
    assert np.isnan(part.transfer_ns).all()
    assert part.exposed_ns.tolist() == [40.0]
    assert part.waited_for_ns.tolist() == [[0.0]]


def test_waits_for_unmatched_collectives_are_unsplit() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank, issue in zip(ranks, (90, 120), strict=True):
        rank.step(0, 1000)
        rank.wait(rank.collective(0, issue, 150), 100 if issue < 100 else 120, 150)
    ranks[0].wait(ranks[0].collective(1, 190, 230), 200, 230)
    part = break_down(*ranks)[0]
    assert values(part, "exposed", "wait", "transfer", "unsplit") == [[80], [20], [30], [30]]
    assert part.waited_for_ns.tolist() == [[0, 20]]


def test_means_of_parts_ignore_unknown_values_but_are_nan_if_none_is_known() -> None:
    nan = float("nan")
    assert mean_of_known(np.array([4.0, nan]), np.array([10.0, 10.0])) == 2.0
    assert mean_of_known(np.array([4.0, 0.0]), np.array([10.0, 0.0])) == 2.0
    assert np.isnan(mean_of_known(np.array([nan, 0.0]), np.array([10.0, 0.0])))
    assert mean_of_known(np.zeros(2), np.zeros(2)) == 0.0
    assert np.isnan(mean_of_known(np.array([]), np.array([])))


def test_the_breakdown_of_a_trace_without_steps_is_empty() -> None:
    rank = Rank()
    rank.wait(rank.collective(0, 10, 50, graph_task=0), 20, 50)
    rank.finalize(60, 70, cpu=0)
    rank.phase(Phase.DATA, 0, 90)
    (part,) = break_down(rank)
    assert len(part.step) == len(part.wall_ns) == len(part.exposed_ns) == 0
    assert part.waited_for_ns.shape == (0, 1)


@pytest.mark.parametrize("chosen", ["000000", "001110", "111111", "100101", "000010"])
def test_rows_and_caused_waiting_of_chosen_steps_equal_the_selected_values(chosen: str) -> None:
    ranks = [Rank(rank, 3) for rank in range(3)]
    for step in range(6):
        begin = 1000 * step
        for rank in ranks:
            issue = begin + 100 * (1 + (rank.rank + step) % 3)
            op = rank.collective(step, issue, begin + 500)
            rank.wait(op, issue, begin + 500)
            rank.step(begin, begin + 1000)
    parts = break_down(*ranks)
    mask = np.array([bit == "1" for bit in chosen])
    for part in parts:
        rows = part.rows(mask)
        for held, whole in ((rows, part), (rows.host, part.host), (rows.on_device, part.on_device)):
            for name, column in vars(whole).items():
                if isinstance(column, np.ndarray):
                    np.testing.assert_array_equal(getattr(held, name), column[mask])
        np.testing.assert_array_equal(rows.work_ns, part.work_ns[:, mask])
        np.testing.assert_array_equal(rows.caused_ns, part.caused_ns[mask])
        waited_ns = part.caused_ns[mask].sum(axis=(0, 2))
        np.testing.assert_array_equal(rows.caused.by_rank_ns(), waited_ns)
    total = np.sum([part.caused_ns[mask] for part in parts], axis=0)
    assert total.any() == mask.any()
    before = [part.caused_ns.copy() for part in parts]
    np.testing.assert_array_equal(RankParts.of(parts).caused_in_all(mask), total)
    np.testing.assert_array_equal([part.caused_ns for part in parts], before)


def test_the_breakdown_of_an_empty_trace_is_empty() -> None:
    assert len(break_down(Rank())[0].step) == 0


@pytest.mark.parametrize("seed", range(60))
def test_parts_of_random_steps_add_up_and_equal_the_simulated_ones(seed: int) -> None:
    run = RandomRun(seed)
    for part, truth in zip(break_down(*run.ranks), run.truth, strict=True):
        check_sums(part)
        assert part.exposed_ns == pytest.approx(truth.exposed, abs=1)
        for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER):
            found = part.part_ns(phase.name.lower())
            assert found == pytest.approx([step[phase] for step in truth.phases], abs=1)
        assert np.isfinite(part.wait_ns).all()


@pytest.mark.parametrize("seed", range(60))
def test_parts_of_steps_add_up_if_records_are_lost(seed: int) -> None:
    lots = random.Random(seed)
    traces = []
    for rank in RandomRun(seed).ranks:
        trace = rank.trace()
        kept = np.array([lots.random() > 0.1 for _ in trace.records], dtype=bool)
        traces.append(dataclasses.replace(trace, records=trace.records[kept]))
    for part in break_traces_down(traces):
        check_sums(part)


def check_sums(part: Breakdown) -> None:
    for name in (*PARTS, "hidden", "wall"):
        assert np.isfinite(part.part_ns(name)).all(), name
        assert (part.part_ns(name) >= -1).all(), (name, part.part_ns(name))
    assert sum(part.part_ns(name) for name in PARTS) == pytest.approx(part.wall_ns, abs=1)
    known = np.isfinite(part.wait_ns)
    assert (part.wait_ns[known] >= 0).all()
    assert (part.transfer_ns[known] >= -1).all()
    total = part.wait_ns + part.transfer_ns + part.unsplit_ns
    assert total[known] == pytest.approx(part.exposed_ns[known], abs=1)
    assert part.unsplit_ns[~known] == pytest.approx(part.exposed_ns[~known], abs=1)
    if not np.isnan(part.no_core_ns).all():
        assert ((part.no_core_ns >= 0) & (part.no_core_ns <= part.exposed_ns + 1)).all()
    waited_for = part.waited_for_ns.sum(axis=1)
    assert waited_for[known] == pytest.approx(part.wait_ns[known], abs=1)
