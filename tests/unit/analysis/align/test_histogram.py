from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from commprof.trace.summary import (
    Histogram,
    mean_ns,
    merged_histogram,
    quantile_ns,
)
from tests.support.builders.histograms import histogram_of

HOUR_NS = 3_600_000_000_000
RANDOM = np.random.default_rng(5)


def same(a: Histogram, b: Histogram) -> bool:
    return (
        (a.count, a.sum_ns, a.min_ns, a.max_ns) == (b.count, b.sum_ns, b.min_ns, b.max_ns)
        and a.buckets.tolist() == b.buckets.tolist()
        and a.counts.tolist() == b.counts.tolist()
    )


def test_bucket_numbers_counts_and_quantiles_of_known_values() -> None:
    """Bucket 317 = 3 * 64 + 125 holds the values 125 * 8 = 1000 to 1007; the middle is 1003."""
    found = histogram_of([5, 1000, 1001, 7, 2**50])
    assert found.buckets.tolist() == [5, 7, 317, 2367]
    assert found.counts.tolist() == [1, 1, 2, 1]
    assert (found.count, found.min_ns, found.max_ns) == (5, 5, 2**50)
    assert found.sum_ns == 5 + 1000 + 1001 + 7 + 2**50
    assert [quantile_ns(found, q) for q in (0, 0.2, 0.4, 0.6, 0.8)] == [5, 5, 7, 1003, 1003]
    assert mean_ns(histogram_of([1, 2])) == 1.5


def test_one_value_has_an_exact_quantile_and_an_empty_histogram_has_nan() -> None:
    assert quantile_ns(histogram_of([123_456_789]), 0.5) == 123_456_789
    empty = histogram_of([])
    assert math.isnan(quantile_ns(empty, 0.5))
    assert math.isnan(mean_ns(empty))
    assert same(merged_histogram([]), empty)


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: RANDOM.uniform(100, HOUR_NS, n),
        lambda n: np.exp(RANDOM.uniform(math.log(100), math.log(HOUR_NS), n)),
        lambda n: 1000 + RANDOM.exponential(1e6, n),
        lambda n: RANDOM.lognormal(13, 2, n),
        lambda n: RANDOM.choice([2e5, 5e8], n),
    ],
)
def test_quantiles_are_within_one_percent(draw: Callable[[int], np.ndarray]) -> None:
    for count in (1, 2, 99, 5000):
        values = np.clip(draw(count), 100, HOUR_NS).astype(np.int64)
        found = histogram_of(values.tolist())
        for q in np.linspace(0, 1, 101).tolist():
            exact = int(np.sort(values)[max(1, math.ceil(q * count)) - 1])
            assert abs(quantile_ns(found, q) - exact) <= exact / 128


def test_merging_parts_in_any_order_gives_the_histogram_of_all_values() -> None:
    for _ in range(20):
        values = (2 ** RANDOM.uniform(0, 50, 300)).astype(np.int64)
        part = RANDOM.integers(0, 5, len(values))
        pile = [histogram_of(values[part == i].tolist()) for i in RANDOM.permutation(5)]
        while len(pile) > 1:
            RANDOM.shuffle(pile)  # type: ignore[arg-type]
            pile.append(merged_histogram([pile.pop(), pile.pop()]))
        assert same(pile[0], histogram_of(values.tolist()))
