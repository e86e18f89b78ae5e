from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.late.costs import LongerPhase, WaitCost
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import scale
from commprof.analysis.step.overhead import Overhead, OwnCost
from commprof.analysis.world import WorldResult
from commprof.stats.intervals import Interval
from tests.support.analysed import analyse_run
from tests.support.builders.results import OVERHEAD, collective, compression, context, parts, world
from tests.support.builders.traces import MS, Rank

RECORDING = "Recording alone"


def said(*worlds: WorldResult, overhead: Overhead | None = None, **values: Any) -> list[str]:
    found = remarks(context(**values), worlds, scale(worlds), overhead)
    return [remark for remark in found if not remark.startswith(RECORDING)]


def on_cores(count: int) -> dict[str, Any]:
    return {"usable_cpu_count": count, "cpu_model": "x"}


def test_a_sound_run_has_no_remarks() -> None:
    assert said(world(1), world(2)) == []


def test_a_remark_names_world_sizes_with_more_threads_than_cores() -> None:
    worlds = [world(n, parts=parts(no_core_ms=3.0)) for n in (2, 4, 8)]
    (remark,) = said(*worlds, machine=on_cores(2))
    assert remark == (
        "More threads than cores at 4 and 8 ranks: the ranks of this host share 2 cores, and each "
        "rank runs 1 thread. At 8 ranks the training thread had no core for 10% of its exposed "
        "time, although it was ready to run."
    )


def test_ranks_that_a_launcher_bound_to_cores_of_their_own_have_enough_cores(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        made = Rank(rank, 2)
        made.metadata["machine"] |= {"usable_cpu_count": 1, "usable_cpus": [str(9 + rank)]}
        for step in range(12):
            made.step(100 * MS * step, 100 * MS * (step + 1))
        made.write(tmp_path / f"rank_{rank}.trace")
    found = analyse_run(tmp_path)
    assert found.context["machine"]["usable_cpu_count"] == 2
    assert found.context["machine"]["usable_cpus"] == ["9", "10"]
    assert "More threads than cores" not in " ".join(found.remarks)


def test_large_figures_are_written_without_an_exponent() -> None:
    phase = LongerPhase(1, "forward", 1234.4, 1200.4, 0.0, 1100.4, 5432.1, 0.0, 2345.6)
    check = CrossCheck("network", "bytes sent by lo", "MB", 23456.4, 12345.4, False, "")
    assert said(world(2, longer_phase=phase, cross_checks=(check,))) == [
        "At 2 ranks, rank 1's forward takes 1234 ms longer than on the other ranks: the rank was "
        "ready to run but had no core for 1200 ms of this difference (5432 more involuntary "
        "switches per step), the rank reads 2346 more pages per step from disk and tasks of the "
        "rank's host stalled for memory for 1100 ms of this difference.",
        "Cross-check at 2 ranks: bytes sent by lo is 12345 MB, but commprof's figure is 23456 MB "
        "(-47.4%).",
    ]


def test_each_thread_of_a_rank_needs_a_core() -> None:
    (remark,) = said(world(1), machine=on_cores(1), threads_per_rank=2)
    assert remark.startswith(
        "More threads than cores at 1 rank: the ranks of this host share 1 core, and each rank "
        "runs 2 threads."
    )
    assert said(world(1), machine=on_cores(2), threads_per_rank=2) == []


@pytest.mark.parametrize("unknown", [{"exposed_ms": 0.0}, {"no_core_ms": math.nan}])
def test_a_remark_says_that_waiting_for_cores_was_not_measured(unknown: dict[str, float]) -> None:
    (remark,) = said(world(2, parts=parts(**unknown)), machine=on_cores(1))
    assert remark.endswith("Whether they waited for cores was not measured.")


def test_efficiency_above_the_ideal_within_the_spread_may_be_noise() -> None:
    (remark,) = said(world(1), world(2, samples_per_s=206.0))
    assert remark == (
        "Efficiency at 2 ranks is 103.0%, above the ideal; adding ranks alone cannot cause that. A "
        "rank's own work per sample took 1.00 times as long as at world size 1; the step times "
        "spread by 4%, so this may be noise."
    )


@pytest.mark.parametrize(
    ("scaling", "cause"),
    [
        ("strong", "under strong scaling each rank's batch shrinks and may fit a faster cache."),
        ("weak", "something else slowed down the baseline, so repeat the run."),
        (None, "something else slowed down the baseline, so repeat the run."),
    ],
)
def test_efficiency_above_the_ideal_beyond_the_spread_is_explained(
    scaling: str | None, cause: str
) -> None:
    faster = world(2, samples_per_s=300.0, parts=parts(step_ms=65.0))
    (remark,) = said(world(1), faster, scaling=scaling)
    assert "is 150.0%" in remark
    assert "took 0.50 times as long as at world size 1; " in remark
    assert remark.endswith(cause)


def test_unknown_efficiency_has_no_remark() -> None:
    assert said(world(1), world(2, samples_per_s=math.nan)) == []


def test_a_baseline_without_own_work_causes_no_division_by_zero() -> None:
    idle = world(1, parts=parts(step_ms=30.0))
    (remark,) = said(idle, world(2, samples_per_s=208.0))
    assert "adding ranks alone cannot cause that; something else slowed" in remark


def test_a_remark_names_world_sizes_with_too_few_measured_steps() -> None:
    assert said(world(1, steps=11), world(2, steps=3), world(4)) == [
        "Only 9 and 1 measured steps at 1 and 2 ranks; at least 10 are needed."
    ]
    assert said(world(1, steps=10), world(2, steps=10), workload="timed") == [
        "Only 8 measured steps at 1 and 2 ranks; at least 10 are needed, for example with "
        "--steps 30."
    ]
    assert said(world(1, steps=12)) == []


def test_a_remark_names_noisy_step_times() -> None:
    assert said(world(1, step_quartiles_ms=(100.0, 116.0))) == [
        "Noisy at 1 rank: the interquartile range is 16% of the median step."
    ]
    assert said(world(1, step_quartiles_ms=(100.0, 114.0))) == []


def test_steps_of_unequal_size_explain_noise() -> None:
    (remark,) = said(world(1, step_quartiles_ms=(80.0, 116.0), samples_per_step=(4.0, 16.0)))
    assert remark.endswith(
        "The steps are not equal: the last step of an epoch has 4 samples, the other steps have 16."
    )
    unknown = world(1, step_quartiles_ms=(80.0, 116.0), samples_per_step=(math.nan, math.nan))
    assert said(unknown)[0].endswith("of the median step.")


def late_rank(**values: Any) -> LateRank:
    late = LateRank(3, 12_340_000, 0.875, 1 / 2001, 9, 10, 0.3702, "forward", 0.93)
    return dataclasses.replace(late, **values)


LATE = (
    "Rank 3 is late at 4 ranks: each of the other ranks waits 12.3 ms per step for it, 88% of all "
    "waiting (probability of this by chance: p = 0.0005). It was late in 9 of 10 measured steps "
    "and cost the others 0.37 s of waiting in all; "
)


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({}, "it fell behind in the forward phase, which explains 93% of the waiting."),
        (
            {"phase": "other"},
            "it fell behind outside of all phases, which explains 93% of the waiting.",
        ),
        (
            {"phase": "host pause"},
            "it fell behind because its process did not run (host pause), which explains 93% of "
            "the waiting.",
        ),
        (
            {"phase": None, "phase_share": 0.4},
            "its lateness is spread over several phases, none of which explains more than 40%.",
        ),
        (
            {"phase": "data", "phase_share": math.nan, "slower_ms": 4.5},
            "it fell behind in the data phase. In three of four steps, this part of the step takes "
            "at least 4.5 ms longer on this rank than the median of the other ranks.",
        ),
        (
            {"phase": None, "phase_share": math.nan},
            "the phase in which it fell behind is not known.",
        ),
    ],
)
def test_a_remark_names_the_late_rank_and_where_it_fell_behind(
    values: dict[str, Any], where: str
) -> None:
    assert said(world(4, late_rank=late_rank(**values))) == [LATE + where]


def test_the_late_rank_remark_says_how_many_ranks_wait() -> None:
    def beginning(waiting: int) -> str:
        (remark,) = said(world(4, late_rank=late_rank(waiting_ranks=waiting)))
        return remark.removeprefix("Rank 3 is late at 4 ranks: ").split(" 12.3 ms")[0]

    assert [beginning(waiting) for waiting in (1, 2, 3)] == [
        "one other rank waits",
        "each of 2 other ranks waits",
        "each of the other ranks waits",
    ]


@pytest.mark.parametrize("causes", [7, 1000])
def test_a_remark_says_whether_waiting_has_main_causes(causes: int) -> None:
    costs = tuple(WaitCost(rank, "forward", 20 / causes, 1 / causes) for rank in range(causes))
    assert said(world(8, wait_costs=costs)) == [
        f"Waiting at 8 ranks was spread over {causes} causes (a rank and its activity): the 3 "
        "largest together explain less than half of it."
    ]
    few = tuple(WaitCost(rank, "data", 4.0, 0.2) for rank in range(5))
    assert said(world(8, wait_costs=few)) == [
        "Waiting at 8 ranks was caused mostly by rank 0 (data) 20%, rank 1 (data) 20% and rank 2 "
        "(data) 20%."
    ]


def test_a_remark_names_stalled_steps() -> None:
    assert said(world(4, stalled_steps=((7, 25_095.0),))) == [
        "Stalled at 4 ranks: step 7 (25.1 s), more than ten times the median. Means and samples/s "
        "include stalled steps; the verdict does not."
    ]


def test_a_remark_says_that_clocks_of_several_machines_were_not_compared() -> None:
    (remark,) = said(world(2, clocks_shared=False, parts=parts(wait_ms=math.nan)))
    assert remark.startswith("At 2 ranks the ranks ran on several machines")


def test_a_remark_gives_the_error_of_compared_clocks() -> None:
    assert said(world(2, clock_error_us=12.01)) == [
        "Ranks' clocks were compared over the network at 2 ranks: offsets are known to ±13 µs. In "
        "each exposed stretch of communication, the split into waiting and transfer may be off by "
        "twice this error."
    ]


def test_remarks_name_missing_ranks_and_unknown_figures() -> None:
    unknown = parts(wait_ms=math.nan, transfer_ms=math.nan)
    assert said(world(4, missing_ranks=(1,))) == [
        "At 4 ranks no usable trace came from rank 1: times are those of the other ranks; the "
        "number of samples is known for all ranks, because the training loop recorded it."
    ]
    uncounted = world(4, missing_ranks=(1, 2, 3), parts=unknown, samples_per_s=math.nan)
    assert said(uncounted) == [
        "At 4 ranks no usable trace came from ranks 1-3: times are those of the other "
        "ranks, and samples/s, speed-up and efficiency are not known.",
        "At 4 ranks some collectives were not seen on all ranks of their group: waiting and "
        "transfer cannot be separated.",
    ]


def test_a_remark_counts_failed_collectives() -> None:
    row = collective(failed=2)
    assert said(world(2, collectives=(row, collective(), row))) == [
        "At 2 ranks, 4 collective calls ended with an error (all_reduce). They count as exposed "
        "time, but are left out of all medians."
    ]


def test_a_remark_counts_dropped_records() -> None:
    assert said(world(2, dropped_records=7)) == [
        "At 2 ranks 7 records were dropped because a buffer was full: communication times may be "
        "too small."
    ]


def test_problems_of_traces_are_remarks() -> None:
    assert said(world(1, problems=("rank 0: cut off",))) == ["At 1 rank: rank 0: cut off."]


def test_a_remark_gives_the_figures_of_a_cross_check_that_disagrees() -> None:
    checks = (
        CrossCheck("phases", "step against the sum of its parts", "ms", 100, 101, False, ""),
        CrossCheck("network", "bytes sent by lo, 1 host", "MB", 1, 3, None, "other traffic"),
        CrossCheck("loop_clock", "the loop's clock", "s", 1, 1, True, ""),
        CrossCheck("network", "bytes sent by eth0", "MB", 0, 3, False, ""),
    )
    assert said(world(2, cross_checks=checks)) == [
        "Cross-check at 2 ranks: step against the sum of its parts is 101 ms, but commprof's "
        "figure is 100 ms (+1.0%).",
        "Cross-check at 2 ranks: bytes sent by eth0 is 3 MB, but commprof's figure is 0 MB.",
    ]


def test_a_remark_says_that_python_capture_sees_only_ddp_s_buckets() -> None:
    (remark,) = said(world(1), capture="python")
    assert remark.startswith("Capture ran in pure Python: only the buckets of DDP were seen")


def test_the_measured_overhead_is_a_remark() -> None:
    assert said(world(1), overhead=OVERHEAD) == [
        "commprof's own cost, from pairs of neighbouring steps (8 steps with capture on, 8 with "
        "capture off, over all world sizes): CPU time of the training threads +0.4 % [-0.2 %, "
        "+1.0 %] (control, pairs of steps with capture off: +0.1 % [-1.0 %, +1.2 %]), not "
        "distinguishable from zero; step time not measurable precisely in this run (95 % interval "
        "-2.0 % to +4.4 %)."
    ]
    clear = OwnCost(Interval(1.02, 1.01, 1.03), Interval(1.001, 0.99, 1.012), 8, 8)
    assert said(world(1), overhead=Overhead(None, clear))[0].endswith(
        "step time +2.0 % [+1.0 %, +3.0 %] (control, pairs of steps with capture off: +0.1 % "
        "[-1.0 %, +1.2 %])."
    )


def test_a_remark_gives_the_cost_of_recording() -> None:
    found = remarks(context(), [world(1)], scale([world(1)]), None)
    assert found == (
        "Recording alone: 20 records per step and rank at 50 ns each (measured in the run) cost "
        "1.0 µs, 0.0010% of the step at 1 rank.",
    )
    assert remarks(context(), [world(1, record_cost_ns=math.nan)], scale([world(1)]), None) == ()


def test_a_run_without_worlds_has_no_remarks() -> None:
    assert remarks(context(), [], (), None) == ()


def test_the_most_important_remarks_come_first() -> None:
    found = said(
        world(1, dropped_records=1),
        world(2, samples_per_s=250.0, steps=4),
        overhead=OVERHEAD,
        machine=on_cores(1),
    )
    assert [remark.split()[0] for remark in found] == [
        "More", "Efficiency", "Only", "At", "commprof's",
    ]  # fmt: skip


def test_bytes_in_compression_remarks_are_per_rank_with_a_trace() -> None:
    seen = {"ranks": world(1).ranks, "missing_ranks": (1,)}
    told = said(world(2, compression=(compression(calls=10),), **seen))
    assert any(text.startswith("At 2 ranks int8 sent 1 MB per step and rank") for text in told)


def test_hardware_threads_do_not_count_as_cores() -> None:
    machine = {**on_cores(4), "usable_core_count": 2}
    (remark,) = said(world(4), machine=machine)
    assert "share 2 cores" in remark
    assert said(world(2), machine=machine) == []
    # Without ``usable_core_count``, ``usable_cpu_count`` is the number of cores.
    assert said(world(4), machine=on_cores(4)) == []


def test_no_remark_says_that_a_hook_compressed_nothing_if_gradients_are_on_a_device() -> None:
    for world_, expected in ((world(2), True), (world(2, device_collectives=4), False)):
        told = said(world_, hook="int8", capture="native")
        assert any("compressed nothing" in text for text in told) == expected
