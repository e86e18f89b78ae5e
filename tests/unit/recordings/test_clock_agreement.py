from __future__ import annotations

import numpy as np
import pytest

from commprof.recordings.clock_agreement import _offset, _quantiles, _rates, _stepped, _tree


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_of_columns_are_those_of_numpy(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.integers(-(10**12), 10**12, (int(draw.integers(1, 30)), 5))
    chosen = draw.random(values.shape) < 0.6
    chosen[int(draw.integers(len(values)))] = True
    for quantile in (0.5, 0.95):
        expected = [np.quantile(values[chosen[:, i], i], quantile) for i in range(5)]
        assert _quantiles(values, chosen, quantile).tolist() == expected


def test_each_rank_is_joined_to_the_one_with_which_it_shares_most() -> None:
    # Rank 3 shares two collectives with rank 2 and one with rank 0; rank 1 shares one with rank 0.
    present = np.array(
        [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0], [0, 0, 1, 1], [0, 0, 1, 1], [1, 0, 0, 1]], bool
    )
    assert _tree(present) == [(2, 0), (3, 2), (1, 0)]
    assert _tree(np.array([[1, 1, 0], [0, 0, 1]], bool)) is None
    assert _tree(np.ones((3, 1), bool)) == []


def test_offsets_add_up_along_the_tree() -> None:
    # Rank 1 is 100 ns behind rank 0, and rank 2 is 30 ns ahead of rank 1 in the median.
    end_ns = np.array([[1000, 900, 0], [2000, 1900, 0], [0, 3000, 3030], [0, 4000, 4020]])
    end_ns = np.concatenate((end_ns, [[0, 5000, 5040]]))
    found = _offset(end_ns, [(1, 0), (2, 1)])
    assert found.offset_ns.tolist() == [0, 100, 70]
    assert found.error_ns.tolist() == [0, 0, 10]


def test_a_clock_is_named_that_ran_otherwise_than_most() -> None:
    # Rank 2's clock gains 10 %, and rank 1's 100 ppm. Rank 3 shares no collective with rank 0.
    at = np.arange(1, 41) * 100_000_000
    end_ns = np.stack([at, at + at // 10_000, at + at // 10, at], axis=1)
    end_ns[:20, 3], end_ns[20:, 0] = 0, 0
    rates = _rates(end_ns, [(1, 0), (2, 0), (3, 1)])
    assert rates == pytest.approx([1, 1, 1.1, 1], rel=1e-12)
    assert "the clock of rank 12 ran at 1.1 times the rate of rank 10's" in _stepped(
        rates, [10, 11, 12, 13]
    )
    assert _stepped(rates[:2], [0, 1]) == ""


def test_few_or_close_ends_tell_no_rate() -> None:
    # A window needs one collective more.
    at = np.arange(1, 16) * 100_000_000
    assert _rates(np.stack([at, 2 * at], axis=1), [(1, 0)]).tolist() == [1, 1]
    # The clock gains 5 %, but within 4 ms only.
    at = np.arange(1, 41) * 100_000
    assert _rates(np.stack([at, at + at // 20], axis=1), [(1, 0)]).tolist() == [1, 1]


@pytest.mark.parametrize("place", [0, -1])
def test_one_end_of_a_thread_without_a_core_is_no_stepped_clock(place: int) -> None:
    at = np.arange(1, 41) * 50_000_000
    other = at.copy()
    other[place] += 30_000_000
    assert _rates(np.stack([at, other], axis=1), [(1, 0)]).tolist() == [1, 1]
