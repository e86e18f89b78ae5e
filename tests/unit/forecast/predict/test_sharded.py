from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.replay.program import ISSUE, WAIT
from commprof.errors import CommprofError
from commprof.forecast.fit.build import build_profile
from commprof.forecast.fit.held_out import check, checks, model_error
from commprof.forecast.replay.recorded import RecordedJob
from commprof.forecast.report import as_json, table
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.sharded.costs import fit_sharded
from commprof.forecast.sharded.cycles import RankCycle
from commprof.forecast.sharded.replay import ShardedReplay
from commprof.forecast.sharded.steps import (
    ShardedCall,
    ShardedSteps,
    filled,
    in_usual_order,
    read_sharded,
    usual_events,
)
from commprof.forecast.sharded.wrapping import wrapped
from commprof.forecast.what_if.answers import answer
from tests.support.builders.schedules import profile, schedule
from tests.support.builders.sharded_job import FLOAT, MB, RATE, fsdp_ranks, fsdp_steps, replay
from tests.support.builders.traces import MS, Rank, world_run


def step_ms(**setting: object) -> float:
    scenario = Scenario(**{"world_size": 2, **setting})  # type: ignore[arg-type]
    return replay().predict(scenario).step_s.value * 1e3


def test_recorded_collectives_are_assigned_to_forward_and_backward() -> None:
    steps = fsdp_steps()
    ops = [(call.op, call.in_backward) for call in steps.calls]
    gathers = [("all_gather", False)] * 2 + [("all_gather", True)] * 2
    assert ops == [*gathers, ("reduce_scatter", True), ("reduce_scatter", True)]
    assert {call.size_bytes for call in steps.calls} == {MB}
    assert {call.among for call in steps.calls} == {"all"}
    assert steps.shard_ranks == 2
    assert steps.period_s == pytest.approx(0.096)
    assert np.median(steps.transfer_ns, axis=(0, 1)) / 1e6 == pytest.approx([5, 5, 5, 5, 10, 10])


def test_unrecorded_short_waits_are_placed_where_another_rank_had_them() -> None:
    events = fsdp_steps().events
    assert events.index((WAIT, 1)) == events.index((ISSUE, 1)) + 1
    assert events[events.index((WAIT, 4)) + 1] == (WAIT, 3)
    own = np.median(fsdp_steps().own_ns, axis=(0, 1)) / 1e6
    assert own[events.index((WAIT, 1))] == pytest.approx(4 + 2 + 10)
    assert own[events.index((WAIT, 3))] == pytest.approx(4 + 2 + 20 + 20)


def test_an_order_of_events_seen_in_only_one_step_is_not_the_usual_one() -> None:
    usual = ((ISSUE, 0), (WAIT, 0), (ISSUE, 1), (WAIT, 1))
    odd = ((ISSUE, 0), (ISSUE, 1), (WAIT, 0), (WAIT, 1))
    short = ((ISSUE, 0), (ISSUE, 1), (WAIT, 1))
    cycles = [
        RankCycle(n, 0.0, 1.0, (0, 1), events, *((0.0,) * len(events),) * 3)
        for n, events in enumerate((odd, usual, short, usual))
    ]
    assert usual_events(cycles) == usual
    assert in_usual_order(cycles[0], usual) is None
    assert in_usual_order(cycles[2], usual) is not None


def test_the_usual_order_is_merged_from_cycles_that_each_lack_a_wait() -> None:
    whole = tuple((kind, n) for n in range(6) for kind in (ISSUE, WAIT))
    cycles = [
        RankCycle(n, 0.0, 1.0, tuple(range(6)), events, *((0.0,) * len(events),) * 3)
        for n in range(6)
        if (events := tuple(each for each in whole if each not in {(WAIT, n), (WAIT, 5 - n)}))
    ]
    assert usual_events(cycles) == whole
    assert all(in_usual_order(each, whole) is not None for each in cycles)


def test_missing_times_of_events_are_filled_in_from_known_ones() -> None:
    table = np.array([[1.0, 4.0, 6.0], [1.0, np.nan, 5.0], [2.0, np.nan, np.nan]])
    assert filled(table).tolist() == [[1, 4, 6], [1, pytest.approx(3.4), 5], [2, 2, 2]]


def test_replay_of_the_recorded_sharded_setting_takes_the_recorded_time() -> None:
    found = replay().predict(Scenario(2))
    assert found.step_s.value == pytest.approx(0.096, abs=2e-9)
    assert found.transfer_s == pytest.approx(0.030, abs=1e-8)
    assert found.hidden_s == pytest.approx(0.010, abs=1e-8)
    assert found.compute_s == pytest.approx(0.066, abs=1e-8)
    assert found.perfect_overlap_s == pytest.approx(0.066, abs=1e-8)
    assert found.buckets == 6
    # An all-gather sends half of 1 MB, and gloo's reduce-scatter sends the whole 1 MB.
    assert found.sent_bytes == pytest.approx(4 * MB / 2 + 2 * MB)


def test_more_ranks_send_more_bytes_and_update_fewer_parameters() -> None:
    # 4 ranks send 1.5 times the bytes, and each rank updates half as many parameters.
    # The parts of the step are 2, 7.5, 10, 10, 7.5, 20, 15, 20, 15 and 2 ms.
    assert step_ms(world_size=4) == pytest.approx(109, abs=1e-5)


@pytest.mark.parametrize("ranks", [8, 16, 64])
def test_sharded_step_time_is_predicted_for_the_requested_number_of_ranks(ranks: int) -> None:
    factor = 2 * (ranks - 1) / ranks
    wanted = 2 + 20 + 40 + factor * (5 + 5 + 10 + 10) + 4 * 2 / ranks
    assert step_ms(world_size=ranks) == pytest.approx(wanted, abs=1e-5)


def test_on_a_slow_link_prefetched_all_gathers_delay_other_collectives() -> None:
    # On the slow link an all-gather takes 50 ms, and a reduce-scatter takes 100 ms.
    # Forward ends at 112 ms, and backward's first gather at 162 ms. The prefetched gather uses the
    # link until 212 ms, so the reduce-scatter issued at 182 ms ends at 312 ms. Then follow 20, 100
    # and 4 ms.
    assert step_ms(bandwidth_bytes_per_s=RATE / 10) == pytest.approx(436, abs=1e-5)


def test_recorded_time_beyond_a_collective_s_fitted_cost_is_kept() -> None:
    steps = fsdp_steps()
    transfer = steps.transfer_ns.copy()
    transfer[:, :, 4] += 3e6
    transfer[:, :, 5] -= 4e6
    uneven = dataclasses.replace(steps, transfer_ns=transfer)
    held = ShardedReplay(uneven, profile(bytes_per_s=RATE, latency_s=0.0))
    # The reduce-scatters take 13 and 6 ms instead of 10 ms each. With half of the bytes the fitted
    # cost is 5 ms, so the first takes 5 + 3 ms, and the second 5 x 0.6 ms.
    assert held.predict(Scenario(2)).step_s.value == pytest.approx(0.095, abs=1e-8)
    half = held.predict(Scenario(2, reduce_dtype="bf16"))
    assert half.step_s.value == pytest.approx(0.076 + 0.008 + 0.003, abs=1e-8)
    # On 4 ranks the reduce-scatters take 15 + 3 ms and 15 - 4 ms.
    assert held.predict(Scenario(4)).step_s.value == pytest.approx(0.108, abs=1e-8)


def test_gathering_in_bf16_halves_the_exposed_all_gather_time() -> None:
    assert step_ms(gather_dtype="bf16") == pytest.approx(96 - 2 * 2.5, abs=1e-5)


def test_reducing_in_bf16_halves_the_exposed_reduce_scatter_time() -> None:
    assert step_ms(reduce_dtype="bf16") == pytest.approx(96 - 2 * 5, abs=1e-5)


def test_without_resharding_backward_gathers_nothing_again() -> None:
    found = replay().predict(Scenario(2, reshard_after_forward=False))
    assert found.step_s.value == pytest.approx(0.091, abs=1e-8)
    assert found.buckets == 4
    assert any("stay in memory" in remark for remark in found.remarks)


def test_wrapping_two_blocks_in_one_unit_joins_their_collectives() -> None:
    # A unit of both blocks gathers for 10 ms in forward and in backward, and reduces for 20 ms.
    found = replay().predict(Scenario(2, wrap_blocks=2))
    assert found.step_s.value == pytest.approx(0.106, abs=1e-8)
    assert found.buckets == 3
    assert any("in memory at the same time" in remark for remark in found.remarks)
    assert step_ms(wrap_blocks=1) == pytest.approx(96, abs=1e-5)


def test_wrapped_units_are_prefetched_when_the_previous_unit_begins() -> None:
    """The model has a root of 2 MB and five blocks of 1 MB, which backward prefetches."""
    whole = ShardedCall("all_gather", MB, "all", 4, False)
    again = dataclasses.replace(whole, in_backward=True)
    reduced = dataclasses.replace(again, op="reduce_scatter")
    calls = [dataclasses.replace(whole, size_bytes=2 * MB), *[whole] * 5]
    events = [(kind, n) for n in range(6) for kind in (ISSUE, WAIT)]
    # Calls 6, 7, 9, 11 and 13 are all-gathers; calls 8, 10, 12 and 14 to 16 are reduce-scatters.
    calls += [
        again,
        *[again, reduced] * 4,
        reduced,
        dataclasses.replace(calls[0], op="reduce_scatter", in_backward=True),
    ]
    events += [(ISSUE, 6), (WAIT, 6), (ISSUE, 7)]
    for gather, reduce, following in ((7, 8, 9), (9, 10, 11), (11, 12, 13)):
        events += [(ISSUE, reduce), (WAIT, gather), (ISSUE, following)]
    events += [(ISSUE, 14), (WAIT, 13)]
    events += [(ISSUE, 15), (ISSUE, 16), *((WAIT, n) for n in (8, 10, 12, 14, 15, 16))]
    steps = dataclasses.replace(fsdp_steps(), calls=tuple(calls), events=tuple(events))

    found = wrapped(steps, 2)
    sizes = {number: call.size_bytes / MB for number, call in found.calls.items()}
    assert sizes == {1: 2, 3: 2, 5: 1, 6: 1, 7: 2, 11: 2, 8: 1, 12: 2, 15: 2}
    assert found.dropped == {2, 4, 9, 13, 10, 14}
    assert found.issued_at == {11: events.index((ISSUE, 9))}

    late = [event for event in events if event != (ISSUE, 11)]
    late.insert(late.index((WAIT, 11)), (ISSUE, 11))
    assert wrapped(dataclasses.replace(steps, events=tuple(late)), 2).issued_at == {}


def kept_gathered() -> ShardedSteps:
    calls = [c for c in fsdp_steps().calls if not (c.op == "all_gather" and c.in_backward)]
    return dataclasses.replace(fsdp_steps(), calls=tuple(calls))


def test_wrapping_is_refused_if_blocks_cannot_be_recognised() -> None:
    with pytest.raises(CommprofError, match="2 all-gathers before backward and 0 in backward"):
        wrapped(kept_gathered(), 2)


def test_hsdp_copies_of_two_ranks_all_reduce_their_parts() -> None:
    found = replay().predict(Scenario(4, shard_ranks=2))
    assert found.step_s.value == pytest.approx(0.106, abs=1e-8)
    assert found.buckets == 8


def test_hsdp_copies_all_reduce_joined_blocks_once() -> None:
    found = replay().predict(Scenario(4, shard_ranks=2, wrap_blocks=2))
    # To the step with both blocks in one unit, an exchange of half of their gradients' bytes is
    # added.
    assert found.step_s.value == pytest.approx(0.116, abs=1e-8)
    assert found.buckets == 4


def test_a_mesh_of_one_copy_exchanges_nothing_between_copies() -> None:
    """With one copy, FSDP2 all-reduces gradients in a group of one rank."""
    ranks = fsdp_ranks()
    for rank in ranks:
        rank.groups[2] = (f"copies of part {rank.rank}", 1)
        rank.group_ranks = {2: 0}
        for step in range(8):
            for block, end_ms in enumerate((62, 92)):
                at = (96 * step + end_ms) * MS - 2000
                rank.collective(
                    2 * step + block, at, at + 1000, MB // 2, step, group=2, dtype=FLOAT
                )
    found = read_sharded(world_run(ranks))
    assert found.shard_ranks == 2
    assert [call.among for call in found.calls if call.op == "all_reduce"] == ["alone"] * 2
    assert "all_reduce" not in fit_sharded([found])
    placed = dataclasses.replace(found, link="other_host", placement=fsdp_steps().placement)
    made = replay(placed)
    of_two = (Scenario(2), Scenario(2, wrap_blocks=2))
    for scenario in (*of_two, Scenario(4), Scenario(4, shard_ranks=2)):
        one, other = made.predict(scenario), replay().predict(scenario)
        assert one.step_s.value == pytest.approx(other.step_s.value, abs=1e-5)
        assert one.buckets == other.buckets
        assert one.sent_bytes == other.sent_bytes


def test_sharding_settings_are_refused_if_each_rank_held_a_whole_copy() -> None:
    ranks = fsdp_ranks()
    for rank in ranks:
        rank.groups = {1: (f"part of copy {rank.rank}", 1)}
        rank.group_ranks = {1: 0}
    found = read_sharded(world_run(ranks))
    assert found.shard_ranks == 1
    with pytest.raises(CommprofError, match="in which 2 ranks or more share each copy"):
        replay(found).predict(Scenario(2, shard_ranks=2))


def test_no_caveat_on_step_sizes_if_those_of_the_operation_were_measured() -> None:
    calls = [dataclasses.replace(call, op="broadcast") for call in fsdp_steps().calls]
    steps = dataclasses.replace(fsdp_steps(), calls=tuple(calls))
    links = profile(bytes_per_s=RATE, latency_s=0.0, step_bytes=(0.9 * MB, 1.1 * MB))
    # A broadcast costs as much as an all-reduce, but each of its steps sends the whole 1 MB.
    found = ShardedReplay(steps, links).predict(Scenario(4))
    assert not any("messages of" in reason for reason in found.outside)


def test_a_late_rank_adds_waiting_to_the_sharded_step() -> None:
    steps = fsdp_steps()
    own = steps.own_ns.copy()
    own[:, 1] += 30e6
    late = dataclasses.replace(steps, own_ns=own)
    found = ShardedReplay(late, profile()).predict(Scenario(2))
    assert found.step_s.value == pytest.approx(0.126, abs=1e-8)
    assert found.wait_s == pytest.approx(0.015, abs=1e-8)
    assert found.transfer_s == pytest.approx(0.030, abs=1e-8)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"bucket_cap_bytes": 1.0 * MB}, "--bucket-cap-mb needs a run of DistributedDataParallel"),
        ({"hook": "fp16"}, "--hook needs a run of DistributedDataParallel"),
        (
            {"world_size": 4, "scaling": "strong"},
            "--scaling strong needs a run of DistributedDataParallel",
        ),
        ({"world_size": 1}, "1 rank exchanges nothing"),
        ({"world_size": 6, "shard_ranks": 4}, r"do not divide 6 \(allowed.*: 2, 3, 6\)"),
    ],
)
def test_settings_that_a_sharded_run_cannot_predict_are_refused(
    setting: dict[str, object], reason: str
) -> None:
    with pytest.raises(CommprofError, match=reason):
        step_ms(**setting)


def changed(**fields: Any) -> tuple[ShardedCall, ...]:
    return tuple(dataclasses.replace(call, **fields) for call in fsdp_steps().calls)


@pytest.mark.parametrize(
    ("changes", "setting", "reason"),
    [
        ({"world_size": 1, "shard_ranks": 1}, {"world_size": 4}, "the run has 1 rank, which exch"),
        ({"passes": 2}, {"wrap_blocks": 2}, "2 backward passes, so its blocks cannot be recogn"),
        ({"calls": changed(among="replicate")}, {}, "consecutive numbers, .* tensor parallelism"),
        ({"calls": changed(in_backward=False)}, {}, "before backward, .* sequence parallelism"),
    ],
)
def test_settings_that_the_recorded_run_does_not_show_are_refused(
    changes: dict[str, Any], setting: dict[str, Any], reason: str
) -> None:
    made = replay(dataclasses.replace(fsdp_steps(), **changes))
    with pytest.raises(CommprofError, match=reason):
        made.predict(Scenario(**{"world_size": 2, **setting}))


def test_reading_sharded_steps_from_a_trial_is_refused() -> None:
    ranks = fsdp_ranks()
    ranks[1].metadata["trial"] = {"first_step": 1, "begin_monotonic_ns": 150 * MS}
    with pytest.raises(CommprofError, match=r"a trial switched settings .* without --trial"):
        read_sharded(world_run(ranks))


def test_resharding_is_refused_if_its_all_gathers_were_not_recorded() -> None:
    made = ShardedReplay(kept_gathered(), profile())
    with pytest.raises(CommprofError, match="record it with reshard_after_forward=True"):
        made.predict(Scenario(2, reshard_after_forward=True))


def test_ranks_that_issued_different_collectives_are_refused() -> None:
    ranks = [*fsdp_ranks()[:1], Rank(1, 2)]
    for step in range(8):
        ranks[1].step(step * 96_000_000, (step + 1) * 96_000_000)
    with pytest.raises(CommprofError, match="issued the same collectives"):
        read_sharded(world_run(ranks))


def test_a_check_compares_the_model_with_both_trivial_predictions() -> None:
    measured = dataclasses.replace(fsdp_steps(4), period_s=np.full(6, 0.111))
    found = check(replay(), measured, "4 ranks")
    assert found.held_out
    assert found.predicted_s == pytest.approx(0.109, abs=1e-8)
    assert found.error_of("as_is_s") == pytest.approx(96 / 111 - 1)
    assert found.error_of("perfect_overlap_s") == pytest.approx(64 / 111 - 1)
    error = model_error([found])
    assert error is not None
    assert (error.trivial, error.is_skilled) == ("as_is_s", True)
    assert error.trivial_mean == pytest.approx(1 - 96 / 111)


def test_a_check_refuses_runs_of_another_kind() -> None:
    with pytest.raises(CommprofError, match="shards parameters, gradients or optimizer state"):
        check(replay(), schedule(), "DDP")
    calls = fsdp_steps().calls
    last = max(n for n, call in enumerate(calls) if call.op == "reduce_scatter")
    wrapped_run = dataclasses.replace(fsdp_steps(), calls=(*calls[:last], *calls[last + 1 :]))
    with pytest.raises(CommprofError, match="reduces gradients in 1 unit, a step of"):
        check(replay(), wrapped_run, "wrapped")


def test_there_is_no_best_setting_if_the_recorded_one_cannot_be_predicted_there() -> None:
    copies = dataclasses.replace(fsdp_steps(4), shard_ranks=2)
    asked = [Scenario(3, shard_ranks=3)]
    found = answer(replay(copies), asked, [], [], None, math.nan)
    assert (len(found.answers), found.best) == (1, None)


def test_the_prediction_table_of_a_sharded_run_shows_sharding_settings() -> None:
    measured = dataclasses.replace(fsdp_steps(4), period_s=np.full(6, 0.1035))
    others = [RecordedJob("4 ranks", measured, ())]
    asked = Scenario(4, shard_ranks=2, reshard_after_forward=True, gather_dtype="fp32")
    found = answer(replay(), [asked], [], others, None, math.nan)
    text = table.render(found, "RUN, 2 ranks", "by hand", [], 100)
    cells = next(line.split() for line in text.splitlines() if line.split()[:2] == ["4", "as"])
    assert cells == [
        "4",
        *["as", "run"] * 2,
        "2",
        *["as", "run"] * 2,
        "on",
        "fp32",
        "as",
        "run",
        "8",
        "106",
        *cells[16:],
    ]
    assert "~" in cells
    assert "better of the two, the step as it is now, differs from the measured step by 7.2%" in (
        " ".join(text.split())
    )
    document = json.loads(as_json.render(found, "RUN, 2 ranks", "by hand", []))
    assert document["is_sharded"] is True
    assert document["error"]["is_skilled"] is False
    assert document["answers"][0]["prediction"]["scenario"]["shard_ranks"] == 2


def test_costs_of_collectives_are_fitted_to_the_sharded_run_s_own_calls() -> None:
    steps = fsdp_steps()
    curves = fit_sharded([steps])
    assert curves["all_gather"].time_s(MB, 2) == pytest.approx(0.005)
    assert curves["reduce_scatter"].time_s(MB, 2) == pytest.approx(0.010)
    assert all(curve.is_from_steps for curve in curves.values())
    large = [dataclasses.replace(call, size_bytes=4.0 * MB) for call in steps.calls]
    slower = dataclasses.replace(
        steps,
        calls=tuple(large),
        transfer_ns=1e6 * np.array([17.0] * 4 + [34.0] * 2) * np.ones((6, 2, 1)),
    )
    both = fit_sharded([steps, slower])
    (piece,) = both["all_gather"].pieces
    assert (piece.alpha_s, piece.beta_s_per_byte) == pytest.approx((0.001, 8e-9))


def test_one_call_that_others_hide_leaves_its_operation_a_cost() -> None:
    steps = fsdp_steps()
    transfer = steps.transfer_ns.copy()
    transfer[:, :, 3] = 0.0
    curves = fit_sharded([dataclasses.replace(steps, transfer_ns=transfer)])
    assert curves["all_gather"].time_s(MB, 2) == pytest.approx(0.005)


def test_costs_from_a_checked_run_are_left_out_of_the_model() -> None:
    base, other = fsdp_steps(), dataclasses.replace(fsdp_steps(4), period_s=np.full(6, 0.111))
    recorded = [RecordedJob("2", base, (), "A"), RecordedJob("4", other, (), "A")]
    made, _ = build_profile([], recorded, [str(Path("A").resolve())])
    done, refused = checks(ShardedReplay(base, made), [recorded[1]])
    assert refused == []
    assert [each.held_out for each in done] == [False, True]
    assert done[1].predicted_s == pytest.approx(0.109, abs=1e-8)


def test_a_model_no_better_than_the_present_step_is_not_skilled() -> None:
    measured = dataclasses.replace(fsdp_steps(4), period_s=np.full(6, 0.1035))
    done, _ = checks(replay(), [RecordedJob("4 ranks", measured, ())])
    error = model_error(done)
    assert error is not None
    assert not error.is_skilled
    assert math.isclose(error.mean, 109 / 103.5 - 1, rel_tol=1e-3)
