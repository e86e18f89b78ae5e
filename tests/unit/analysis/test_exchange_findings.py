from __future__ import annotations

import math
from dataclasses import astuple, replace
from typing import Any

import pytest

from commprof.analysis.align.interfaces import idle_interfaces
from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.exchange import Exchange, exchange, small_calls
from commprof.analysis.mean_step import mean_step
from tests.support.builders.results import collective, detail, parts, with_fields, world
from tests.support.builders.traces import Rank

LINKS = HostLinks(2, ("eth1",), 6e6, 0.1, 0.08, 2e8, 2e8, "", 0.007)


def of(links: HostLinks | None = None, rows: tuple[Any, ...] = (), **ms: float) -> Exchange:
    own = parts(exposed_ms=ms.get("transfer", 0.0) + ms.get("wait", 0.0))
    shown = world(2, host_links=links, collectives=rows, parts=own)
    return exchange(shown, mean_step(detail(2, **ms)))


@pytest.mark.parametrize(
    ("ms", "overlapped"),
    [
        ({"backward": 45, "transfer": 40, "hidden": 2}, 2 / 42),
        ({"backward": 45, "transfer": 40, "hidden": 9}, math.nan),
        # A backward pass of 12 ms can hide hardly more than 11 ms.
        ({"backward": 12, "transfer": 70, "hidden": 11}, math.nan),
        ({"backward": 5, "transfer": 70}, math.nan),
        # There is too little to gain, or most of the communication is waiting.
        ({"backward": 80, "transfer": 9}, math.nan),
        ({"backward": 45, "transfer": 12, "wait": 20}, math.nan),
    ],
)
def test_an_exchange_is_reported_serial_only_if_work_could_hide_much_of_its_transfers(
    ms: dict[str, float], overlapped: float
) -> None:
    found = of(**ms)
    assert found.overlapped == pytest.approx(overlapped, nan_ok=True)
    assert found.serial is not math.isnan(overlapped)
    assert found.sentence == (
        "Only 5% of the transfer time overlaps the ranks' work." if found.serial else ""
    )


def test_a_slow_link_between_hosts_is_named_with_idle_interfaces() -> None:
    slow = {"backward": 20.0, "transfer": 60.0, "hidden": 15.0}
    assert (
        of(LINKS, **slow).sentence
        == "Communication between the hosts goes over eth1 at 0.1 Gbit/s."
    )
    idle = replace(LINKS, idle=("eth0", "ib0"))
    assert of(idle, **slow).sentence == (
        "Communication between the hosts goes over eth1 at 0.1 Gbit/s, while eth0 and ib0 are idle."
    )
    nothing = of(idle, backward=80, transfer=5)
    assert astuple(nothing) == astuple(Exchange())
    assert of(replace(idle, in_flight_gbit_per_s=math.nan), **slow).link is None
    # The counters are written at the end, so a killed process has none.
    killed = of(replace(LINKS, interfaces=()), **slow)
    assert (killed.link, killed.sentence) == (None, "")


def test_many_small_calls_are_reported_before_the_slow_link() -> None:
    small = collective(size_bytes=(8, 4096), calls=4000, calls_per_step=200, total_bytes=2**22)
    found = of(replace(LINKS, idle=("eth0",)), (with_fields(small, exposed_ms=60),), transfer=60)
    assert found.sentence == "Communication is cut into 200 small calls per step."


@pytest.mark.parametrize(("each", "found"), [(10, None), (20, 20.0)])
def test_small_calls_of_separate_groups_are_counted_per_rank(
    each: int, found: float | None
) -> None:
    # Each of 8 ranks makes ``each`` calls per step in its own pair, over 10 steps.
    calls = {"calls": each * 2 * 10, "calls_per_step": each, "total_bytes": each * 2 * 10 * 1000}
    rows = tuple(
        collective(**calls, group=f"pair{n}", group_ranks=(2 * n, 2 * n + 1), exposed_ms=15)
        for n in range(4)
    )
    shown = world(8, collectives=rows, parts=parts(exposed_ms=60))
    small = small_calls(shown, mean_step(detail(8, transfer=60)))
    assert (small and small.calls_per_step) == found


def test_idle_interfaces_are_at_least_as_fast_as_the_used_one_and_sent_little() -> None:
    rank = Rank(0, 2)
    sent = {"lo": 9, "eth0": 5, "eth1": 1000, "old": 0, "full": 900, "ib0": 0, "docker0": 0}
    rank.metadata["cross_check_sources"] = {
        "begin_monotonic_ns": 2,
        "interfaces": {n: {"received_bytes": 0, "sent_bytes": x} for n, x in sent.items()},
        "rated_mbit_per_s": {"eth0": 1000, "eth1": 1000, "old": 100, "full": 1000, "ib0": 0},
    }
    trace = rank.trace()
    assert idle_interfaces(trace, "eth1") == {"eth0", "ib0"}
    assert idle_interfaces(trace, None) == set()
    del rank.metadata["cross_check_sources"]["rated_mbit_per_s"]
    assert idle_interfaces(rank.trace(), "eth1") == set()
