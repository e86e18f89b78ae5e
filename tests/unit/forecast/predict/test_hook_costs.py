from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.errors import CommprofError
from commprof.forecast.costs.cost_model import SAME_HOST
from commprof.forecast.costs.hook_costs import HookCost
from commprof.forecast.costs.machine_profile import MachineProfile, load_profile, save_profile
from commprof.forecast.fit.hook_fit import fit_hook
from commprof.forecast.replay.exchange import exchange
from commprof.forecast.replay.replay import Replay
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.scenario.schedule import Placement, Schedule
from tests.support.builders.results import compression
from tests.support.builders.schedules import MB, curve, hook, profile, schedule

OVERHEAD_S = 1.5e-3
SIZES = (1 * MB, 2 * MB, MB // 2)


def recorded() -> Schedule:
    known = hook(overhead_s=OVERHEAD_S)
    made = schedule(ready_ms=(10, 14, 40), bytes_=SIZES, hook="fp16")
    alone = np.array([known.time_s(size, 2, curve()) for size in SIZES])
    made.end_s[:] = exchange(made.ready_s.max(axis=1), alone, np.zeros(3), workers=1)
    return made


def test_known_hook_costs_are_recovered_by_the_fit() -> None:
    rows = [
        compression(
            scheme="fp16",
            gradient_bytes=size,
            encode_ms=size / MB,
            reduce_ms=size / MB / 2,
            decode_ms=size / MB / 2,
            payload_bytes=size / 2,
        )
        for size in SIZES
    ]
    found = fit_hook("fp16", rows, [recorded()], curve())
    assert found.encode == pytest.approx((0.0, 1e-9), abs=1e-12)
    assert found.decode == pytest.approx((0.0, 0.5e-9), abs=1e-12)
    assert found.payload_ratio == pytest.approx(0.5)
    assert found.overhead_s == pytest.approx(OVERHEAD_S, rel=0.07)
    assert found.bucket_bytes == (MB / 2, 2 * MB)
    assert (found.exchange, found.ranks) == ("two_phase", 2)


def test_compute_time_lost_to_a_hook_is_fitted_from_runs_with_equal_buckets() -> None:
    rows = [compression(scheme="fp16", gradient_bytes=MB, payload_bytes=MB / 2)]
    hooked = schedule(bytes_=SIZES, ready_ms=(1, 2, 3), backward_end_ms=27, hook="fp16")
    plain = schedule(bytes_=SIZES, ready_ms=(1, 2, 3), backward_end_ms=20)
    other = schedule(backward_end_ms=90)
    found = fit_hook("fp16", rows, [hooked], curve(), [other, plain])
    assert found.compute_s_per_byte == pytest.approx(0.007 / sum(SIZES))
    assert math.isnan(fit_hook("fp16", rows, [hooked], curve(), [other]).compute_s_per_byte)


def two_levels(**values: Any) -> HookCost:
    return hook(
        "hierarchical",
        exchange="hierarchical",
        encode=(0.0, 0.0),
        reduce=(0.0, 2e-9),
        decode=(0.0, 0.0),
        payload_ratio=1.0,
        between_hosts=True,
        ranks_per_host=2,
        **values,
    )


def test_costs_of_both_levels_of_a_hierarchical_exchange_are_fitted() -> None:
    known = two_levels(overhead_s=OVERHEAD_S)
    fast = curve(beta_s_per_byte=1e-9)
    # 1 MB takes 2 ms within hosts and 1 ms between hosts; seven eighths of the 1 ms overlap.
    assert known.time_s(MB, 2, fast) == pytest.approx(OVERHEAD_S + 0.002 + 0.001 / 8)
    assert known.time_s(MB, 1, fast) == pytest.approx(OVERHEAD_S + 0.002)
    assert (known.peers(8, 2), known.peers(7, 2), hook().peers(8, 2)) == (4, 4, 8)
    # Two of 8 chunks are in flight at a time, so each of 4 turns has two steps of 1 ms.
    slow = curve(alpha_s=0.001, beta_s_per_byte=1e-12)
    assert known.transfer_s(MB, 2, slow) == pytest.approx(0.008, rel=1e-3)
    made = schedule(
        ready_ms=(10, 20, 40),
        bytes_=SIZES,
        ranks=4,
        hook="hierarchical",
        placement=Placement(2.0, 4.0, 1, 1.0),
    )
    alone = np.array([known.time_s(size, 2, fast) for size in SIZES])
    made.end_s[:] = exchange(made.ready_s.max(axis=1), alone, np.zeros(3), workers=1)
    rows = [
        compression(scheme="hierarchical", gradient_bytes=size, payload_bytes=size)
        for size in SIZES
    ]
    found = fit_hook("hierarchical", rows, [made], fast)
    assert found.overhead_s == pytest.approx(OVERHEAD_S, rel=0.1)
    assert found.reduce == (0.0, pytest.approx(2e-9, rel=0.1))
    assert (found.ranks, found.ranks_per_host, found.between_hosts) == (2, 2, True)
    assert (found.payload_ratio, found.sent_bytes(MB, 4)) == (1.0, 1.5 * MB)
    assert found.low is not None
    assert found.high is not None
    assert found.low.reduce[1] <= found.reduce[1] <= found.high.reduce[1]
    assert found.low.overhead_s <= found.overhead_s <= found.high.overhead_s
    assert math.isnan(found.work_residual)
    assert found.residual < 0.01


def test_a_compressor_between_hosts_counts_their_bytes() -> None:
    made = schedule(ranks=4, bytes_=SIZES, ready_ms=(10, 20, 40), hook="int8:hierarchical=1")
    rows = [
        compression(scheme="int8", gradient_bytes=size, payload_bytes=size / 8) for size in SIZES
    ]
    on_two = dataclasses.replace(made, placement=Placement(2.0, 4.0, 1, 1.0))
    found = fit_hook("int8:hierarchical=1", rows, [on_two], curve())
    assert (found.exchange, found.payload_ratio, found.ranks) == ("two_phase", 0.25, 2)
    on_one = dataclasses.replace(made, placement=Placement(4.0, 4.0, 1, 1.0))
    with pytest.raises(CommprofError, match="recorded on one host"):
        fit_hook("int8:hierarchical=1", rows, [on_one], curve())


def test_prediction_with_a_hierarchical_hook_uses_both_links() -> None:
    links = {**profile(SAME_HOST).links, **profile().links}
    made = Replay(schedule(), MachineProfile(links, {"hierarchical": two_levels()}))
    found = made.predict(Scenario(4, ranks_per_host=2, hook="hierarchical"))
    # 1 MB takes an eighth of the 2 ms within hosts, and then 10 ms between hosts.
    assert found.step_s.value == pytest.approx(0.010 + 0.01025 + 0.0205)
    assert found.sent_bytes == pytest.approx(1.5 * MB)
    assert found.outside == ()
    elsewhere = made.predict(Scenario(16, ranks_per_host=4, hook="hierarchical"))
    assert elsewhere.outside[:2] == (
        "hierarchical with 4 ranks per host (measured: 2)",
        "hierarchical at 4 hosts (measured: 2)",
    )


def test_fitting_a_hook_without_compressed_buckets_is_refused() -> None:
    with pytest.raises(CommprofError, match="--world-sizes 2 --hook fp16"):
        fit_hook("fp16", [], [recorded()], curve())
    with pytest.raises(CommprofError, match="the cost model supports no such scheme"):
        fit_hook("smoke", [compression()], [recorded()], curve())


@pytest.mark.parametrize(
    ("exchange", "ranks", "messages"),
    [("two_phase", 2, 2), ("two_phase", 3, 3), ("gather", 2, 2), ("ring", 2, 0)],
)
def test_a_longer_latency_delays_every_message(exchange: str, ranks: int, messages: int) -> None:
    known = hook(exchange=exchange, overhead_s=OVERHEAD_S, payload_ratio=0.01, ranks=ranks)
    before = known.time_s(MB, ranks, curve())
    later = known.time_s(MB, ranks, curve(), later_s=0.002)
    assert later == pytest.approx(before + messages * 0.002)
    assert known.time_s(MB, ranks, curve(), later_s=-1.0) >= before - OVERHEAD_S


@pytest.mark.parametrize("exchange", ["ring", "hierarchical"])
def test_ring_and_hierarchical_hooks_cost_an_all_reduce_whatever_was_measured(
    exchange: str,
) -> None:
    reduced, scattered = (
        curve(alpha_s=1e-3, op=op, backend="nccl") for op in ("all_reduce", "reduce_scatter")
    )
    known = hook(exchange=exchange)
    assert known.transfer_s(MB, 4, scattered) == known.transfer_s(MB, 4, reduced)


def test_more_than_two_ranks_add_one_message_of_latency_to_a_hook() -> None:
    known = hook(overhead_s=OVERHEAD_S, ranks=2)
    quick, slow = curve(alpha_s=0.0), curve(alpha_s=0.003)
    later_s = [known.time_s(MB, ranks, slow) - known.time_s(MB, ranks, quick) for ranks in (2, 4)]
    assert later_s == pytest.approx([0.0, 0.003])


def test_an_added_message_has_the_increased_latency_once() -> None:
    known = hook(overhead_s=OVERHEAD_S, ranks=2)
    before = known.time_s(MB, 4, curve(alpha_s=0.001))
    after = known.time_s(MB, 4, curve(alpha_s=0.003), later_s=0.002)
    assert after == pytest.approx(before + 3 * 0.002)


def test_a_stated_latency_delays_a_hook_s_messages() -> None:
    def step_s(latency_s: float, alpha_s: float) -> float:
        known = hook(alpha_s=alpha_s, overhead_s=OVERHEAD_S)
        made = Replay(schedule(), profile(hooks=(known,), alpha_s=1e-4, latency_s=1e-5))
        return made.predict(Scenario(2, latency_s=latency_s, hook="fp16")).step_s.value

    assert step_s(1e-5, 1e-4) == step_s(math.nan, 1e-4)
    # The second bucket's two messages come after the end of backward.
    assert step_s(1e-5 + 1e-4, 1e-4) == pytest.approx(step_s(1e-5, 1e-4) + 2e-4)
    assert step_s(0.5, math.nan) == step_s(1e-5, math.nan)


def test_ranks_of_a_host_share_its_link() -> None:
    assert [hook().link_sharing(8, per_host) for per_host in (1, 8)] == [1.0, 1.0]
    assert hook().link_sharing(8, 4) == pytest.approx(16 / 7)
    assert hook(exchange="ring").link_sharing(8, 4) == 1.0
    assert two_levels().link_sharing(8, 4) == 1.0
    links = {**profile(SAME_HOST).links, **profile().links}
    made = Replay(schedule(), MachineProfile(links, {"fp16": hook()}))
    step_s = [
        made.predict(Scenario(4, ranks_per_host=per_host, hook="fp16")).step_s.value
        for per_host in (1, 2, 4)
    ]
    # 1 MB takes 7.5 ms of wire and 2 ms of work, or 10 ms of wire if two ranks share the link.
    # The second bucket starts at 20 ms, or at 22 ms on the shared link.
    assert step_s == pytest.approx([0.020 + 0.019, 0.022 + 0.024, 0.020 + 0.019])


def test_hook_costs_keep_the_link_and_latency_of_their_run(tmp_path: Path) -> None:
    rows = [compression(scheme="fp16", gradient_bytes=MB, payload_bytes=MB / 2)]
    found = fit_hook("fp16", rows, [recorded()], curve(alpha_s=1e-4))
    assert (found.alpha_s, found.link) == (1e-4, "other_host")
    save_profile(profile(hooks=(found,)), tmp_path / "profile.json")
    document = json.loads((tmp_path / "profile.json").read_text())
    loaded = load_profile(tmp_path / "profile.json").hooks["fp16"]
    assert dataclasses.astuple(loaded) == dataclasses.astuple(found)
    newer = ("alpha_s", "link", "residual", "work_residual", "low", "high", "replicates")
    for name in newer:
        del document["hooks"]["fp16"][name]
    (tmp_path / "profile.json").write_text(json.dumps(document))
    older = load_profile(tmp_path / "profile.json").hooks["fp16"]
    assert math.isnan(older.alpha_s)
    assert math.isnan(older.residual)
    assert (older.low, older.replicates, older.replicate(3)) == (None, (), older)


def test_top_k_sends_no_more_than_all_values() -> None:
    known = hook("topk:ratio=0.25", exchange="gather", payload_ratio=0.25)
    assert known.sent_bytes(MB, 2) == pytest.approx(0.25 * MB)
    # 8 ranks select twice the bucket, so the hook sends all of it: 7 / 8 of 2 x 0.5 MB.
    assert known.sent_bytes(MB, 8) == pytest.approx(0.875 * MB)
    assert known.remarks(3) == hook().remarks(8) == []
    assert "each rank adds up a part of the bucket" in known.remarks(4)[0]
    between = hook("topk:ratio=0.25,hierarchical=1", exchange="gather", between_hosts=True)
    assert "at 4 hosts can be lower than predicted" in between.remarks(4)[0]
    made = Replay(schedule(), profile(hooks=(known,)))
    assert known.remarks(4)[0] in made.predict(Scenario(4, hook="topk")).remarks
