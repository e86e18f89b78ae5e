"""A compressor's cost, fitted on buckets whose times are made from known ones."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.errors import CommprofError
from commprof.predict.exchange import exchange
from commprof.predict.hook_costs import fit_hook
from commprof.predict.schedule import Schedule
from tests.support.results import compression
from tests.support.schedules import MB, curve, hook, schedule

OVERHEAD_S = 1.5e-3
SIZES = (1 * MB, 2 * MB, MB // 2)


def recorded() -> Schedule:
    """Buckets of fp16 with the costs of ``hook()`` and an overhead, one after the other."""
    known = hook(overhead_s=OVERHEAD_S)
    made = schedule(ready_ms=(10, 14, 40), bytes_=SIZES, hook="fp16")
    alone = np.array([known.time_s(size, 2, curve()) for size in SIZES])
    made.end_s[:] = exchange(made.ready_s.max(axis=1), alone, np.zeros(3), workers=1)
    return made


def test_the_costs_come_back() -> None:
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


def test_nothing_compressed_is_refused() -> None:
    with pytest.raises(CommprofError, match="--world-sizes 2 --hook fp16"):
        fit_hook("fp16", [], [recorded()], curve())
