from __future__ import annotations

import pytest

from benchmarks.judging.simulate import Bucket, Link, ring_segments, simulate

MB = 1e6
#: 1 MB takes 10 ms over this link.
LINK = Link(bytes_per_s=100 * MB)


@pytest.mark.parametrize(
    ("size_mib", "ranks", "segments"),
    [(0.5, 2, 4), (3, 2, 4), (4.5, 2, 6), (8, 4, 8), (8.5, 4, 12), (1, 1, 2)],
)
def test_number_of_ring_segments_by_size_and_ranks(
    size_mib: float, ranks: int, segments: int
) -> None:
    assert ring_segments(size_mib * (1 << 20), ranks) == segments


@pytest.mark.parametrize(("ranks", "sent"), [(1, 0.0), (2, 1.0), (3, 4 / 3), (4, 1.5)])
def test_one_bucket_takes_the_sent_bytes_divided_by_the_bandwidth(ranks: int, sent: float) -> None:
    step = simulate([Bucket(0.005, 8 * MB)], 0.005, ranks, LINK)
    assert step.begin_s == (0.005,)
    assert step.exposed_s == pytest.approx(0.08 * sent)


def test_transfers_during_backward_are_not_exposed() -> None:
    assert simulate([Bucket(0.005, 2 * MB)], 0.015, 2, LINK).exposed_s == pytest.approx(0.010)
    assert simulate([Bucket(0.005, 2 * MB)], 0.040, 2, LINK).exposed_s == 0.0


def test_a_bucket_waits_for_the_link() -> None:
    step = simulate([Bucket(0.0, 2 * MB), Bucket(0.010, 1 * MB)], 0.010, 2, LINK)
    assert max(step.end_s) == pytest.approx(0.030)
    assert step.exposed_s == pytest.approx(0.020)


def test_two_equal_buckets_share_the_link() -> None:
    # Each bucket sends two pairs of segments, and each pair takes 10 ms. The buckets take turns.
    step = simulate([Bucket(0.0, 2 * MB), Bucket(0.0, 2 * MB)], 0.0, 2, LINK)
    assert step.end_s == pytest.approx((0.030, 0.040))


def test_buckets_share_the_link_segment_by_segment() -> None:
    # The buckets take turns: a pair takes 2 ms in the small bucket, and 20 ms in the large bucket.
    step = simulate([Bucket(0.0, 0.4 * MB), Bucket(0.0, 4 * MB)], 0.0, 2, LINK)
    assert step.end_s == pytest.approx((0.024, 0.044))


def test_a_third_bucket_waits_for_a_thread() -> None:
    buckets = [Bucket(0.0, 2 * MB), Bucket(0.0, 2 * MB), Bucket(0.0, 2 * MB)]
    step = simulate(buckets, 0.0, 2, LINK)
    assert step.begin_s == pytest.approx((0.0, 0.0, 0.030))
    assert step.end_s[0] == pytest.approx(0.030)
    assert max(step.end_s) == pytest.approx(0.060)


def test_one_thread_sends_one_bucket_after_the_other() -> None:
    buckets = [Bucket(0.0, 2 * MB), Bucket(0.0, 2 * MB)]
    step = simulate(buckets, 0.0, 2, LINK, workers=1)
    assert step.begin_s == pytest.approx((0.0, 0.020))
    assert step.end_s == pytest.approx((0.020, 0.040))


def test_an_idle_link_passes_a_burst_at_once() -> None:
    link = Link(100 * MB, burst_bytes=0.5 * MB)
    assert simulate([Bucket(0.0, 2 * MB)], 0.0, 2, link).exposed_s == pytest.approx(0.015)
    # The link is idle from 15 ms to 17 ms, and saves up 0.2 MB of the second bucket.
    step = simulate([Bucket(0.0, 2 * MB), Bucket(0.017, 1 * MB)], 0.017, 2, link)
    assert step.exposed_s == pytest.approx(0.008)


def test_no_buckets_or_empty_buckets_have_no_exposed_time() -> None:
    assert simulate([], 0.01, 4, LINK).exposed_s == 0.0
    assert simulate([Bucket(0.02, 0)], 0.02, 4, LINK).exposed_s == 0.0


@pytest.mark.parametrize(
    "arguments",
    [
        ([Bucket(0.1, 1.0), Bucket(0.0, 1.0)], 0.1, 2, LINK),
        ([], 0.1, 0, LINK),
        ([], 0.1, 2, Link(0.0)),
    ],
    ids=["order", "ranks", "rate"],
)
def test_invalid_schedules_are_refused(arguments: tuple) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="must be"):
        simulate(*arguments)
