from __future__ import annotations

import numpy as np
import pytest

from commprof.trace.lookup import distinct_rows, joined_column, kept_once, one_value
from commprof.trace.stretches import Windows, covered


@pytest.mark.parametrize("seed", range(5))
def test_windows_cover_what_each_covers(seed: int) -> None:
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(10_000, 40, replace=False)) + 10**12
    begin, end, amount = edges[::2], edges[1::2], random.random(20)
    first = random.integers(10**12, 10**12 + 10_000, 50)
    last = first + random.integers(0, 3000, 50)
    windows = Windows(first, last)
    for amounts in (None, amount):
        found = windows.covered(begin, end, amounts)
        assert found.tolist() == covered(begin, end, amounts, first, last).tolist()
    assert windows.covered(begin[:0], end[:0]).tolist() == [0.0] * 50


def test_columns_of_one_value_keep_it_once() -> None:
    same, other = np.full(100, 7), np.arange(100)
    assert kept_once(same).strides == (0,)
    assert kept_once(other) is other
    assert kept_once(np.array([1, 2, 1])).tolist() == [1, 2, 1]
    assert len(kept_once(same[:0])) == len(one_value(same[:0])) == 0
    both = joined_column([one_value(same), one_value(same[:10])])
    assert both.strides == (0,)
    assert both.tolist() == [7] * 110
    mixed = joined_column([one_value(same[:2]), one_value(same[:2] + 1), other[:2]])
    assert mixed.tolist() == [7, 7, 8, 8, 0, 1]
    number, first = distinct_rows(one_value(same), other % 3)
    assert number.tolist() == (other % 3).tolist()
    assert first.tolist() == [0, 1, 2]
