"""Break-even bandwidths that can be worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.trials.break_even import Costs, break_even, no_break_even
from commprof.trials.candidates import ROLES, parse_candidate

MB, MS = 1e6, 1e6


def found(
    plain: float, wire: float, coding: float, slowdown: float, hidden: float, spread: float = 0.0
):
    """8 rounds of these means; MB, MB, ms, ms, ms."""
    noise = 1 + spread * np.array([1, -1, 1, -1, 1, -1, 1, -1])
    return break_even(
        Costs(
            plain * MB * noise,
            wire * MB * noise,
            coding * MS * noise,
            slowdown * MS * noise,
            hidden * MS * noise,
        )
    )


def test_bytes_saved_must_pay_for_the_work() -> None:
    # 3 MB saved are 24 Mbit; 4 ms of coding and 2 ms more in the step: 24e6 bit in 6e6 ns.
    result = found(plain=4, wire=1, coding=4, slowdown=2, hidden=0.1)
    assert result is not None
    assert result.pays == "below"
    assert result.gbit_per_s is not None
    assert result.gbit_per_s.value == pytest.approx(4.0)
    assert result.gbit_per_s.low == pytest.approx(4.0)


def test_above_a_bandwidth_all_communication_is_hidden() -> None:
    # 4 MB are 32 Mbit, and 14 + 2 ms hide them at 2 Gbit/s and above.
    result = found(plain=4, wire=1, coding=4, slowdown=2, hidden=14)
    assert result is not None
    assert result.gbit_per_s is not None
    assert result.gbit_per_s.value == pytest.approx(2.0)


def test_a_step_that_got_faster_elsewhere_is_no_credit() -> None:
    result = found(plain=4, wire=1, coding=6, slowdown=-3, hidden=0.1)
    assert result is not None
    assert result.gbit_per_s is not None
    assert result.gbit_per_s.value == pytest.approx(4.0)


def test_what_saves_no_byte_never_pays() -> None:
    result = found(plain=4, wire=5, coding=1, slowdown=0, hidden=1)
    assert result is not None
    assert (result.pays, result.gbit_per_s) == ("never", None)


def test_what_costs_nothing_always_pays() -> None:
    result = found(plain=4, wire=1, coding=0, slowdown=0, hidden=0)
    assert result is not None
    assert (result.pays, result.gbit_per_s) == ("always", None)


def test_its_interval_comes_from_the_rounds() -> None:
    draw = np.random.default_rng(3).normal(1, 0.1, size=8)
    ones = np.ones(8)
    result = break_even(Costs(4 * MB * ones, MB * ones, 6 * MS * draw, 0 * ones, 0.1 * MS * ones))
    assert result is not None
    assert result.gbit_per_s is not None
    assert result.gbit_per_s.low < result.gbit_per_s.value < result.gbit_per_s.high
    assert result.gbit_per_s.value == pytest.approx(24 / (6 * np.median(draw)))


def test_nothing_is_said_of_what_was_not_measured() -> None:
    ones = np.ones(8)
    assert break_even(Costs(ones, np.full(8, np.nan), ones, ones, ones)) is None
    assert break_even(Costs(*[np.ones(2)] * 5)) is None


@pytest.mark.parametrize(
    ("label", "answer", "reason"),
    [
        ("bucket-cap=5", "does not apply", "the same bytes are sent in other buckets"),
        ("no-overlap", "does not apply", "the same bytes are sent at another time"),
        ("hierarchical", "does not apply", "bytes within a host go through memory"),
        ("int8:hierarchical=1+bucket-cap=5", "does not apply", "bytes within a host go through"),
        ("int8", "not known", "compressors that run as torch operations tell neither"),
    ],
)
def test_where_there_is_none_the_reason_is_told(label: str, answer: str, reason: str) -> None:
    found = no_break_even(parse_candidate(label), rounds=8, told=False)
    assert found is not None
    assert found.answer == answer
    assert found.reason.startswith(reason)


def test_other_reasons() -> None:
    int8 = parse_candidate("int8")
    short, missing = no_break_even(int8, 2, True), no_break_even(int8, 8, True)
    assert short is not None
    assert missing is not None
    assert short.reason == "3 complete rounds are the least"
    assert missing.reason == "a figure that it takes was not measured"
    assert [no_break_even(role, 8, False) for role in ROLES] == [None] * 3
