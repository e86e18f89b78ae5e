from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.card import card
from commprof.analysis.late.slower_ranks import SlowerRanks, slower_ranks, whole_hosts
from commprof.analysis.step.exposure import ORIGINS
from commprof.analysis.step.measured import measured_world
from commprof.analysis.verdict import verdict
from commprof.analysis.world import world_result
from commprof.report.card import render
from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, trained
from tests.support.builders.results import detail, run_result
from tests.support.builders.traces import MS, world_run

STEP = 100.0 * MS
ONE_HOST = dict.fromkeys(range(4), "node-0")
HOSTS = {rank: f"node-{rank // 4}" for rank in range(8)}
FORWARD = ORIGINS.index("forward")


def slower(
    extra_ms: dict[int, float], late: int | None = None, clock_error_ns: float = 0.0
) -> SlowerRanks | None:
    random = np.random.default_rng(3)
    work = random.uniform(0.0, 0.3 * MS, (8, len(ORIGINS), 20))
    for rank, ms in extra_ms.items():
        work[rank, FORWARD] += ms * MS
    own = work.sum(axis=1)
    last = own.argmax(axis=0)
    by_waiting = np.zeros((8, 8))
    for step in range(20):
        by_waiting[:, last[step]] += own[:, step].max() - own[:, step]
    total_ns = float(by_waiting.sum())
    found_in = work, by_waiting, total_ns, 20, range(8), HOSTS, STEP
    return slower_ranks(*found_in, clock_error_ns, late)


@pytest.mark.parametrize(
    ("extra_ms", "ranks", "hosts"),
    [
        (dict.fromkeys(range(4, 8), 10.0), (4, 5, 6, 7), ("node-1",)),
        (dict.fromkeys(range(4, 7), 10.0), (4, 5, 6), ()),
        ({1: 10.0, 6: 8.0}, (1, 6), ()),
        ({1: 10.0}, None, None),
        # 1 ms is less than 2 % of the step.
        ({1: 1.0, 6: 1.0}, None, None),
        # If five of eight ranks take longer, the other three ranks are fast.
        (dict.fromkeys(range(5), 10.0), None, None),
        ({rank: 2.0 * rank for rank in range(8)}, None, None),
        ({}, None, None),
    ],
)
def test_ranks_that_work_longer_than_all_others_are_found(
    extra_ms: dict[int, float], ranks: tuple[int, ...] | None, hosts: tuple[str, ...] | None
) -> None:
    found = slower(extra_ms)
    assert (found and found.ranks, found and found.hosts) == (ranks, hosts)
    if found is not None:
        assert found.phase == "forward"
        assert found.longer_ms == pytest.approx(min(extra_ms.values()), abs=0.8)
        # The slower ranks wait a little for each other.
        assert found.share > 0.96


@pytest.mark.parametrize(
    ("extra_ms", "ranks"),
    [
        ({1: 10.0, 6: 8.0}, (1, 6)),
        # 4 ms are less than half of rank 1's 10 ms.
        ({1: 10.0, 6: 4.0}, None),
        ({1: 10.0, 6: 9.0, 4: 2.5, 5: 2.5}, (1, 6)),
        ({1: 12.0, 2: 11.0, 6: 10.5, 4: 2.0, 5: 1.0, 7: 2.0}, (1, 2, 6)),
        (dict.fromkeys((1, 2, 3, 5, 6), 10.0), None),
    ],
)
def test_beside_a_late_rank_those_that_are_nearly_as_late_are_found(
    extra_ms: dict[int, float], ranks: tuple[int, ...] | None
) -> None:
    found = slower(extra_ms, 1)
    assert (found and found.ranks) == ranks


def test_two_of_four_ranks_are_slow_if_one_is_named_late() -> None:
    work = np.random.default_rng(1).uniform(0.0, 0.3 * MS, (4, len(ORIGINS), 20))
    work[2:, FORWARD] += 20.0 * MS
    by_waiting = np.zeros((4, 4))
    by_waiting[:2, 2], by_waiting[:2, 3] = 190.0 * MS, 210.0 * MS
    found = slower_ranks(work, by_waiting, 800.0 * MS, 20, range(4), ONE_HOST, STEP, 0.0, 3)
    assert found is not None
    assert (found.ranks, found.waiting_ranks) == ((2, 3), 2)
    assert found.wait_ms == pytest.approx(20.0)


def test_ranks_that_exchange_nothing_with_the_slower_ones_do_not_wait_for_them() -> None:
    work = np.random.default_rng(1).uniform(0.0, 0.3 * MS, (8, len(ORIGINS), 20))
    work[4:6, FORWARD] += 20.0 * MS
    by_waiting = np.zeros((8, 8))
    by_waiting[4, 5] = by_waiting[5, 4] = 100.0 * MS
    found_in = work, by_waiting, 300.0 * MS, 20, range(8), HOSTS, STEP, 0.0, None
    assert slower_ranks(*found_in) is None
    by_waiting[6:, 4:6] = 200.0 * MS
    found = slower_ranks(work, by_waiting, 1000.0 * MS, *found_in[3:])
    assert found is not None
    assert (found.ranks, found.waiting_ranks, found.share) == ((4, 5), 2, pytest.approx(0.8))
    assert found.wait_ms == pytest.approx(20.0)


def test_hosts_that_are_not_known_are_not_named() -> None:
    hosts = {rank: "node-0" if rank < 4 else "" for rank in range(8)}
    assert whole_hosts(range(4), hosts) == ("node-0",)
    assert whole_hosts(range(4, 8), hosts) == ()
    assert whole_hosts(range(8), hosts) == ()


def test_waits_within_the_error_of_two_clocks_name_nobody() -> None:
    assert slower({1: 10.0, 6: 8.0}, clock_error_ns=3.0 * MS) is not None
    assert slower({1: 10.0, 6: 8.0}, clock_error_ns=6.0 * MS) is None


def test_steps_of_ranks_that_are_alike_name_nobody() -> None:
    random = np.random.default_rng(5)
    for _ in range(200):
        work = random.lognormal(1.0, 1.0, (16, len(ORIGINS), 12)) * MS
        waited = random.uniform(0, 1, (16, 16)) * 100 * MS
        assert slower_ranks(work, waited, waited.sum(), 12, range(16), {}, STEP, 0.0, None) is None


def test_the_first_screen_names_the_slow_host() -> None:
    def body(script: Script, step: int) -> None:
        script.work(1.0 + 0.1 * ((3 * step + script.rank.rank) % 4))
        script.work(40.0 if script.rank.rank >= 4 else 20.0, Phase.FORWARD)
        script.backward(20.0)
        script.meet(2.0)

    ranks = [script.rank for script in trained(body, 8, 20)]
    for rank in ranks:
        rank.metadata["machine"]["hostname"] = HOSTS[rank.rank]
    run = world_run(ranks)
    seen = measured_world(run)
    assert seen is not None
    result = world_result(run, seen)
    assert result.lateness.late_rank is None
    assert result.lateness.slower is not None
    assert result.lateness.slower.wait_ms == pytest.approx(20.0, abs=0.5)
    found, details = run_result(result), [detail(8, backward=40, wait=10, transfer=2, steps=19)]
    made = card(found, details, verdict(found, details), Path("RUN"))
    assert made is not None
    text = " ".join(render(made).split())
    assert "ranks 4-7 (all of host node-1) delay the step: they fall behind in the" in text
    assert "First find out what delays ranks 4-7 (all of host node-1) in their forward" in text
    assert "No single rank" not in text
