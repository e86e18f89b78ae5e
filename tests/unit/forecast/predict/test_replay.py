"""By default, buckets of 1 MB and 2 MB are ready at 10 ms and 20 ms, and backward ends at 20 ms.

Between 2 ranks, 1 MB takes 10 ms.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest

from commprof.errors import CommprofError
from commprof.forecast.costs.cost_model import SAME_HOST, Piece
from commprof.forecast.costs.hook_costs import HookFigures
from commprof.forecast.costs.machine_profile import LinkProfile, MachineProfile
from commprof.forecast.fit.held_out import check, checks, model_error
from commprof.forecast.replay.recorded import RecordedJob
from commprof.forecast.replay.replay import Replay
from commprof.forecast.scenario.links import scenario_link
from commprof.forecast.scenario.rank_steps import OtherCall
from commprof.forecast.scenario.scenario import Prediction, Scenario
from commprof.forecast.scenario.schedule import Placement, StepBatch
from tests.support.builders.schedules import MB, curve, hook, profile, schedule

MIB = 1 << 20
GBIT = 1e9 / 8


def replay(**values: object) -> Replay:
    return Replay(schedule(**values), profile())  # type: ignore[arg-type]


def test_replay_of_the_recorded_setting_gives_the_recorded_times() -> None:
    found = replay().predict(Scenario(2))
    assert found.step_s.value == pytest.approx(0.040)
    assert (found.wait_s, found.transfer_s) == pytest.approx((0.0, 0.020))
    assert found.hidden_s == pytest.approx(0.010)
    assert found.compute_s == pytest.approx(0.020)
    assert found.no_overlap_s == pytest.approx(0.050)
    assert found.perfect_overlap_s == pytest.approx(0.030)
    assert found.samples_per_s == pytest.approx(2 * 8 / 0.040)
    assert found.efficiency == pytest.approx(0.5)
    assert found.sent_bytes == pytest.approx(3 * MB)
    assert found.hiding_bytes_per_s == pytest.approx(1 * MB / 0.010)
    assert found.outside == ()


def test_more_ranks_send_more_bytes_and_take_longer() -> None:
    # 4 ranks send 1.5 times the bytes, so the buckets take 15 ms and 30 ms.
    found = replay().predict(Scenario(4))
    assert found.step_s.value == pytest.approx(0.055)


def test_copies_of_gradients_follow_the_wait_for_their_bucket() -> None:
    found = replay(copy_s_per_byte=1e-9).predict(Scenario(2))
    assert found.step_s.value == pytest.approx(0.042)
    assert found.transfer_s == pytest.approx(0.019)


def test_one_rank_has_no_exposed_time() -> None:
    found = replay().predict(Scenario(1))
    assert found.step_s.value == pytest.approx(0.020)
    assert found.exposed_s == 0.0


def test_a_single_bucket_does_not_overlap_with_backward() -> None:
    known = {"parameter_bytes": [2 * MB, MB], "rebuilt_per_bucket_param_indices": "1, 0"}
    found = replay(ddp_log=known).predict(Scenario(2, bucket_cap_bytes=math.inf))
    assert found.buckets == 1
    assert found.step_s.value == pytest.approx(0.050)
    assert math.isnan(found.hiding_bytes_per_s)
    assert found.remarks == ()


def test_smaller_buckets_are_cut_between_parameters() -> None:
    # The second bucket has two parameters of 1 MB; the first parameter is ready at 15 ms.
    known = {"parameter_bytes": [MB, MB, MB], "rebuilt_per_bucket_param_indices": "2, 1 0"}
    found = replay(ddp_log=known).predict(Scenario(2, bucket_cap_bytes=0.5 * MB))
    assert found.buckets == 3
    assert found.step_s.value == pytest.approx(0.040)
    assert "interpolated" in found.remarks[0]
    each_its_own = replay(ddp_log=known).predict(Scenario(2, bucket_cap_bytes=0.0))
    assert (each_its_own.buckets, each_its_own.step_s) == (3, found.step_s)
    unknown = replay().predict(Scenario(2, bucket_cap_bytes=0.5 * MB))
    assert "parameter sizes were not recorded" in unknown.remarks[0]


def test_changing_the_bucket_cap_is_refused_for_two_ddp_models() -> None:
    two = replay(models=2)
    with pytest.raises(CommprofError, match="one DDP model; this run has 2"):
        two.predict(Scenario(2, bucket_cap_bytes=math.inf))
    assert two.predict(Scenario(2)).buckets == 2


def test_the_predicted_step_follows_the_latest_rank() -> None:
    late = schedule()
    late.ready_s[:, 1] += 0.005
    late.backward_end_s[:, 1] += 0.005
    found = Replay(late, profile()).predict(Scenario(2))
    assert found.step_s.value == pytest.approx(0.045)
    assert found.wait_s == pytest.approx(0.0025)


def test_random_delays_lengthen_the_step_more_with_more_ranks() -> None:
    base = schedule(steps=500)
    random = np.random.default_rng(1)
    noise = random.exponential(0.004, base.backward_end_s.shape)
    noisy = dataclasses.replace(
        base,
        ready_s=base.ready_s + noise[:, :, None],
        backward_end_s=base.backward_end_s + noise,
    )
    steps = [
        Replay(noisy, profile(beta_s_per_byte=1e-12)).predict(Scenario(n)).step_s.value
        for n in (2, 8, 32)
    ]
    # On average, the largest of n exponential draws is (ln n + 0.577) times their mean.
    assert np.diff(steps) == pytest.approx(0.004 * math.log(4) * np.ones(2), rel=0.5)


def test_sharing_cores_lengthens_only_the_processor_s_part_of_compute() -> None:
    def steps(busy: float) -> float:
        made = schedule(bytes_=(1, 1), placement=Placement(2, 4.0, 1, busy))
        return Replay(made, profile(SAME_HOST)).predict(Scenario(8, ranks_per_host=8)).step_s.value

    assert steps(1.0) == pytest.approx(0.040, rel=1e-3)
    assert steps(0.5) == pytest.approx(0.020, rel=1e-3)
    with pytest.raises(CommprofError, match="how much CPU a rank uses"):
        steps(math.nan)


def test_strong_scaling_needs_runs_with_two_batch_sizes() -> None:
    scenario = Scenario(4, scaling="strong")
    with pytest.raises(CommprofError, match="--scaling strong"):
        replay().predict(scenario)
    made = Replay(schedule(bytes_=(1, 1)), profile(), compute_by_batch=(0.004, 0.002))
    found = made.predict(scenario)
    assert found.step_s.value == pytest.approx(0.012, rel=1e-3)
    assert found.samples_per_s == pytest.approx(16 / 0.012, rel=1e-3)


def test_copy_time_does_not_depend_on_the_batch_size() -> None:
    made = Replay(
        schedule(bytes_=(1, MB), copy_s_per_byte=1e-8), profile(), compute_by_batch=(0.0, 0.001)
    )
    found = made.predict(Scenario(4, scaling="strong"))
    assert found.step_s.value == pytest.approx(0.010 + 0.015 + 0.010, rel=1e-3)


@pytest.mark.parametrize("threads", [1, 8])
def test_threads_of_a_rank_do_not_lengthen_a_message_between_hosts(threads: int) -> None:
    placement = Placement(4.0, 8.0, threads, 0.9)
    links = profile(alpha_s=1e-3, beta_s_per_byte=1e-15, ranks_per_core=1.0)
    made = Replay(schedule(ranks=8, bytes_=(1, 1), placement=placement), links)
    # Each bucket takes 14 successive messages of 1 ms; the second bucket starts at 20 ms.
    assert made.predict(Scenario(8)).step_s.value == pytest.approx(0.034, rel=1e-3)


def test_a_faster_link_does_not_shorten_the_reduction_s_own_time() -> None:
    links = profile(bytes_per_s=1e8, latency_s=0.0, alpha_s=0.0, gamma_s_per_byte=4e-9)
    for backend, op, left in (("gloo", "all_reduce", 2e-9), ("nccl", "reduce_scatter", 4e-9)):
        known = dataclasses.replace(links.links["other_host"].curves["all_reduce"])
        one = dataclasses.replace(known, op=op, backend=backend)
        link = dataclasses.replace(links.links["other_host"], curves={op: one})
        scenario = Scenario(2, ranks_per_host=1, bandwidth_bytes_per_s=2e8)
        found = scenario_link(
            MachineProfile({"other_host": link}, {}), scenario, Placement(1, 4, 1, 0.5), op
        )
        assert found.outer is not None
        assert found.outer.pieces[-1].beta_s_per_byte == pytest.approx((1e-8 - left) / 2 + left)


def test_a_barrier_takes_equally_long_at_any_bandwidth() -> None:
    one = dataclasses.replace(curve(), op="barrier", pieces=(Piece(0.0, 1e-3, 0.0),))
    links = {"other_host": LinkProfile({"barrier": one}, 1e8, 0.0)}
    scenario = Scenario(2, ranks_per_host=1, bandwidth_bytes_per_s=2e8)
    placement = Placement(1, 4, 1, 0.5)
    found = scenario_link(MachineProfile(links, {}), scenario, placement, "barrier")
    assert found.outer is not None
    assert found.outer.pieces == one.pieces


@pytest.mark.parametrize("link", ["same_host", "other_host"])
def test_a_stated_latency_is_added_if_the_fit_found_none(link: str) -> None:
    none = (Piece(0.0, 0.0, 1e-9),)
    one = dataclasses.replace(curve(), pieces=none, replicates=(((0.0, 2e-9),),))
    links = MachineProfile({link: LinkProfile({"all_reduce": one}, 1e9, 0.0)}, {})
    scenario = Scenario(2, ranks_per_host=1, bandwidth_bytes_per_s=1e9, latency_s=0.5)
    found = scenario_link(links, scenario, Placement(1, 4, 1, 0.5))
    assert found.time_s(2 * MB, 2, "all_reduce") == pytest.approx(2 * (0.5 + 0.001))
    drawn = found.replicate(0)
    assert drawn.time_s(2 * MB, 2, "all_reduce") == pytest.approx(2 * (0.5 + 0.002))


def test_an_increased_latency_is_hidden_by_transfers_only_above_a_larger_size() -> None:
    # The cost is max(beta x, alpha + beta x / 2); alpha is 1 ms at first, and then 5 ms.
    later = curve(alpha_s=1e-3).changed(lambda alpha: alpha + 4e-3, lambda beta: beta)
    assert [piece.low_bytes for piece in later.pieces] == pytest.approx([0, MB])
    assert later.step_s(0.9 * MB) == pytest.approx(0.005 + 0.0045)
    assert later.step_s(2 * MB) == pytest.approx(0.020)


@pytest.mark.parametrize("first", [(0.0, 1e-9), (1e-3, 0.0)])
def test_an_increased_latency_also_counts_at_large_sizes(first: tuple[float, float]) -> None:
    pieces = (Piece(0.0, *first), Piece(1.0 * MB, 0.0, 1e-9))
    later = dataclasses.replace(curve(), pieces=pieces)
    later = later.changed(lambda alpha: alpha + 0.5, lambda beta: beta)
    assert later.step_s(2 * MB) == pytest.approx(0.5 + 0.002)


@pytest.mark.parametrize("algorithm", ["flat", "hierarchical"])
def test_all_reduce_is_priced_from_measured_reduce_scatter(algorithm: str) -> None:
    # An all-reduce has twice as many steps as a reduce-scatter, with equal bytes per step.
    def replayed(op: str) -> Prediction:
        one = curve(alpha_s=1e-3, op=op, backend="nccl", step_bytes=(0.1 * MB, 0.2 * MB))
        links = {name: LinkProfile({op: one}) for name in ("same_host", "other_host")}
        made = Replay(schedule(backend="nccl"), MachineProfile(links, {}))
        return made.predict(Scenario(8, ranks_per_host=2, algorithm=algorithm))

    reduced, scattered = replayed("all_reduce"), replayed("reduce_scatter")
    assert scattered.step_s == reduced.step_s
    assert scattered.outside == reduced.outside
    assert any("messages of" in each for each in scattered.outside)


def test_a_hook_adds_its_own_time_and_saves_bytes() -> None:
    made = Replay(schedule(), profile(hooks=(hook(),)))
    found = made.predict(Scenario(2, hook="fp16"))
    assert found.step_s.value == pytest.approx(0.020 + 0.014)
    assert found.sent_bytes == pytest.approx(1.5 * MB)
    with pytest.raises(CommprofError, match=r"in this profile: fp16.*--hook int8"):
        made.predict(Scenario(2, hook="int8"))


def test_a_hook_takes_processor_time_from_compute() -> None:
    slower = hook(compute_s_per_byte=1e-9)
    found = Replay(schedule(), profile(hooks=(slower,))).predict(Scenario(2, hook="fp16"))
    assert found.step_s.value == pytest.approx(0.023 + 0.014)
    unknown = hook(compute_s_per_byte=math.nan)
    found = Replay(schedule(), profile(hooks=(unknown,))).predict(Scenario(2, hook="fp16"))
    assert found.step_s.value == pytest.approx(0.020 + 0.014)
    assert "with this hook and without a hook" in found.remarks[0]
    hooked = Replay(schedule(hook="int8"), profile(hooks=(slower,)))
    (remark, *_) = hooked.predict(Scenario(2, hook="fp16")).remarks
    assert "the run used the hook int8; predict from a run without a hook" in remark


def test_bytes_and_work_of_a_gathering_hook_grow_with_the_ranks() -> None:
    gathered = hook("topk:ratio=0.01", exchange="gather", payload_ratio=0.01)
    assert gathered.sent_bytes(MB, 8) == pytest.approx(7 * 0.01 * MB)
    assert gathered.work_s(MB, 8) == pytest.approx(0.001 + 4 * 0.001)
    large = hook("int8", payload_ratio=1.0)
    # A piece is 1 MiB of all values with two ranks, or of a rank's share with more ranks.
    # The shorter of work and wire overlaps, except for one piece.
    size, quick = 16.0 * MIB, curve(alpha_s=0.0)
    for ranks, pieces in ((2, 16), (4, 4)):
        work, wire = large.work_s(size, ranks), large.transfer_s(size, ranks, quick)
        assert large.time_s(size, ranks, quick) == pytest.approx(wire + work / pieces)


def test_predicting_another_bandwidth_needs_the_measured_link_s_bandwidth() -> None:
    scenario = Scenario(4, bandwidth_bytes_per_s=2 * GBIT, ranks_per_host=1)
    unstated = Replay(schedule(), profile())
    with pytest.raises(CommprofError, match="--link-bandwidth"):
        unstated.predict(scenario)
    # The measured link reaches 80 % of 1 Gbit/s; the predicted link is twice as fast.
    stated = Replay(schedule(), profile(bytes_per_s=GBIT))
    found = stated.predict(scenario)
    assert found.step_s.value == pytest.approx(max(0.020, 0.010 + 0.0075) + 0.015)
    assert "80.0%" in found.remarks[0]
    assert "the hosts may not be able to send this fast" in found.outside[0]
    with pytest.raises(CommprofError, match="--link-latency"):
        stated.predict(dataclasses.replace(scenario, latency_s=1e-3))


def test_predicting_links_between_hosts_needs_bandwidth_and_latency() -> None:
    made = Replay(schedule(placement=Placement(2, 4.0, 1, 1.0)), profile(SAME_HOST))
    with pytest.raises(CommprofError, match="give both --bandwidth and --latency"):
        made.predict(Scenario(4, ranks_per_host=2, bandwidth_bytes_per_s=GBIT))
    found = made.predict(Scenario(4, ranks_per_host=2, bandwidth_bytes_per_s=GBIT, latency_s=20e-6))
    assert any("measured: within one host" in text for text in found.outside)
    with pytest.raises(CommprofError, match="--ranks-per-host 1"):
        made.predict(Scenario(2, bandwidth_bytes_per_s=GBIT))


def test_flat_and_hierarchical_all_reduce_use_links_within_and_between_hosts() -> None:
    links = {**profile(SAME_HOST).links, **profile(beta_s_per_byte=4e-8).links}
    made = Replay(schedule(), MachineProfile(links))
    # A flat ring goes at the pace of the slow link: 1.5 x 3 MB at 25 MB/s, from 10 ms on.
    flat = made.predict(Scenario(4, ranks_per_host=2))
    assert flat.step_s.value == pytest.approx(0.010 + 0.180)
    nested = made.predict(Scenario(4, ranks_per_host=2, algorithm="hierarchical"))
    assert nested.step_s.value < flat.step_s.value
    alone = nested.no_overlap_s - 0.020
    assert alone == pytest.approx(0.030 + 0.120)


def test_the_step_s_interval_comes_from_replicates_of_the_fit() -> None:
    uncertain = profile(replicates=tuple(((0.0, b),) for b in (0.9e-8, 1e-8, 1.1e-8)))
    found = Replay(schedule(), uncertain).predict(Scenario(2))
    # The last 2 MB begin at 20 ms and take 18 ms on the fast link. On the slow link, the bucket
    # before them ends later: they begin at 21 ms and take 22 ms.
    assert found.step_s.low == pytest.approx(0.038, abs=2e-4)
    assert found.step_s.high == pytest.approx(0.043, abs=2e-4)


def test_exposed_and_hidden_time_have_intervals() -> None:
    uncertain = profile(replicates=tuple(((0.0, b),) for b in (0.9e-8, 1e-8, 1.1e-8)))
    found = Replay(schedule(), uncertain).predict(Scenario(2))
    waiting = found.waiting
    for each, (value, low, high) in (
        (waiting.wait_s, (0.0, 0.0, 0.0)),
        # 3 MB take 30 ms, 20 ms of it after backward: 27 and 18 ms on the fast link, 33 and 23 ms
        # on the slow link.
        (waiting.transfer_s, (0.020, 0.018, 0.023)),
        (waiting.exposed_s, (0.020, 0.018, 0.023)),
        (waiting.hidden_s, (0.010, 0.009, 0.010)),
    ):
        assert (each.value, each.low, each.high) == pytest.approx((value, low, high), abs=1e-9)
    assert (waiting.exposed_s.value, waiting.hidden_s.value) == (found.exposed_s, found.hidden_s)


def test_steps_that_differ_widen_the_interval_of_the_wait() -> None:
    base = schedule(steps=40)
    late = np.random.default_rng(1).exponential(0.004, base.backward_end_s.shape)
    noisy = dataclasses.replace(base, backward_end_s=base.backward_end_s + late)
    found = Replay(noisy, profile()).predict(Scenario(2)).waiting.wait_s
    assert 0 < found.low < found.value < found.high < 0.008


def test_replicates_of_a_hook_are_combined_with_those_of_the_link() -> None:
    def drawn(encode_s_per_byte: float) -> HookFigures:
        return HookFigures((0.0, encode_s_per_byte), (0.0, 0.5e-9), (0.0, 0.5e-9), 0.0)

    uncertain = hook(replicates=tuple(map(drawn, (0.5e-9, 1e-9, 1.5e-9))))
    found = Replay(schedule(), profile(hooks=(uncertain,))).predict(Scenario(2, hook="fp16"))
    step = found.step_s
    # The last 2 MB take 10 ms of wire and 4, 3 or 5 ms of work.
    assert (step.value, step.low, step.high) == pytest.approx((0.034, 0.033, 0.035))
    exposed = found.waiting.exposed_s
    assert (exposed.low, exposed.high) == pytest.approx((0.013, 0.015))
    links = tuple(((0.0, b),) for b in (0.8e-8, 1e-8, 1.2e-8))
    both = Replay(schedule(), profile(hooks=(uncertain,), replicates=links))
    step = both.predict(Scenario(2, hook="fp16")).step_s
    assert (step.low, step.high) == pytest.approx((0.020 + 0.008 + 0.003, 0.020 + 0.012 + 0.005))


def test_the_model_error_counts_held_out_checks_only() -> None:
    made = replay()
    other = schedule(ranks=4, period_s=np.full(5, 0.050))
    own = check(made, made.schedule, "own")
    assert not own.held_out
    assert own.error == pytest.approx(0.0)
    hooked = RecordedJob("hooked", schedule(hook="int8"), ())
    found, refused = checks(made, [RecordedJob("four", other, ()), hooked])
    assert [each.held_out for each in found] == [False, True]
    assert found[1].error == pytest.approx(0.10)
    error = model_error(found)
    assert error is not None
    assert (error.mean, error.worst, error.points) == (
        pytest.approx(0.10),
        pytest.approx(0.10),
        1,
    )
    assert "int8" in refused[0]
    assert model_error(found[:1]) is None


def test_throughput_is_nan_if_the_batch_size_is_unknown() -> None:
    found = replay(batch=StepBatch(0.0, 0, "")).predict(Scenario(2))
    assert math.isnan(found.samples_per_s)


def test_recorded_waits_for_other_collectives_do_not_count_as_compute() -> None:
    made = Replay(
        schedule(
            bytes_=(1, 1),
            other_wait_s=np.full((5, 2), 0.010),
            other_calls=(OtherCall("all_reduce", MB, 1.0),),
        ),
        profile(bytes_per_s=1e8, latency_s=0.0),
    )
    for found in map(made.predict, (Scenario(2), Scenario(2, bandwidth_bytes_per_s=1e8))):
        assert found.step_s.value == pytest.approx(0.020, rel=1e-3)
        assert (found.wait_s, found.transfer_s) == pytest.approx((0.0, 0.010), rel=1e-3)
        assert found.waiting.exposed_s.low == pytest.approx(0.010, rel=1e-3)
        assert found.compute_s == pytest.approx(0.010, rel=1e-3)
        assert found.efficiency == pytest.approx(0.5, rel=1e-3)


def test_ranks_spread_over_hosts_wait_longer_for_other_collectives() -> None:
    links = {
        "same_host": LinkProfile({"all_reduce": curve(0.0, 1e-9)}),
        "other_host": LinkProfile({"all_reduce": curve(0.0, 1e-7)}, 1e7, 0.0),
    }
    recorded = schedule(
        link=SAME_HOST,
        placement=Placement(2.0, 4.0, 1, 1.0),
        other_wait_s=np.full((5, 2), 0.001),
        other_calls=(OtherCall("all_reduce", MB, 1.0),),
    )
    made = Replay(recorded, MachineProfile(links, {}, ("by hand",)))
    assert made.predict(Scenario(2)).step_s.value == pytest.approx(0.022)
    for rate in (math.nan, 1e7):
        found = made.predict(Scenario(2, ranks_per_host=1, bandwidth_bytes_per_s=rate))
        # Without the recorded wait the bucket is ready at 9 ms, and the predicted wait adds 100 ms.
        assert found.step_s.value == pytest.approx(0.009 + 0.100 + 0.300)
    assert made.predict(Scenario(1, ranks_per_host=1)).step_s.value == pytest.approx(0.019)


@pytest.mark.parametrize(
    ("op", "parts"), [("all_gather_into_tensor", 3), ("gather", 3), ("all_to_all_single", 1.5)]
)
def test_gathered_bytes_grow_with_the_ranks(op: str, parts: float) -> None:
    # Each of 4 ranks receives 3 parts of 1 MB, or 3/4 of the 2 MB of an all-to-all.
    others = (OtherCall(op, 2 * MB, 1.0),)
    found = replay(bytes_=(1, 1), other_calls=others).predict(Scenario(4))
    assert found.transfer_s == pytest.approx(parts * 0.010, rel=1e-3)


def test_ten_thousand_ranks_are_predicted_within_the_time_limit() -> None:
    buckets = 100
    base = schedule(
        ready_ms=tuple(float(t) for t in range(1, buckets + 1)),
        bytes_=(MB,) * buckets,
        backward_end_ms=100,
        ranks=4,
        steps=20,
    )
    made = Replay(base, profile())
    begin = time.process_time()
    found = made.predict(Scenario(10_000))
    assert time.process_time() - begin < 10
    assert found.step_s.value == pytest.approx(0.001 + 2 * 0.9999 * 1.0, rel=1e-3)
    assert any("10000 ranks" in text for text in found.outside)
