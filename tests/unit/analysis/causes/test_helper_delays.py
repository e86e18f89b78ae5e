"""The core that helper threads take from a training thread is divided among calls in progress."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.causes.ddp_small_buckets import buckets_of_ddp
from commprof.analysis.causes.helper_delays import delays_by
from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, facts_of

#: Bytes of a bucket, so many that the 64 KiB that ``delays_by`` adds for each call do not matter.
LARGE = 300_000_000


def sharing(script: Script, step: int) -> None:
    """Two buckets, one three times as large, keep the training thread from its core for 4 ms."""
    script.forward(10.0)
    script.backward(20.0, {3 * LARGE: 1.0, LARGE: 1.0}, held_ms=4.0)
    script.work(1.0, Phase.OPTIMIZER)


def delay_ms(larger: bool, threads: int = 1, bytes_remain: bool = False) -> float:
    """Delay per step by the larger or the smaller buckets of the first rank."""
    facts = facts_of(sharing, threads=threads)
    calls = facts.first
    mask = buckets_of_ddp(calls) & ((calls.size_bytes > LARGE) == larger)
    assert mask.sum() == facts.steps
    delays = delays_by(calls, mask, bytes_remain)
    inside = np.isin(delays.at.begin_ns, calls.table.issue_ns[calls.step >= 0])
    return float(delays.amount[inside].sum()) / facts.steps / 1e6


def test_calls_in_progress_share_the_delay_by_their_bytes() -> None:
    # The delay was read for 14 ms. In these, the larger bucket is done after 1 ms and the smaller
    # one after 2 ms: so all of their bytes count.
    assert delay_ms(larger=True) == pytest.approx(3.0, abs=0.01)
    assert delay_ms(larger=False) == pytest.approx(1.0, abs=0.01)


def test_calls_whose_bytes_others_carry_free_hardly_anything() -> None:
    assert delay_ms(larger=True, bytes_remain=True) == pytest.approx(0.0, abs=0.01)


def test_helper_threads_are_not_told_from_intra_op_threads() -> None:
    assert delay_ms(larger=True, threads=4) == 0.0
