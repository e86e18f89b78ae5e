from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.causes.ddp_small_buckets import buckets_of_ddp
from commprof.analysis.causes.helper_delays import delays_by
from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, facts_of

#: ``delays_by`` adds 64 KiB to each call, which hardly matters beside so many bytes.
LARGE = 300_000_000


def sharing(script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {3 * LARGE: 1.0, LARGE: 1.0}, held_ms=4.0)
    script.work(1.0, Phase.OPTIMIZER)


def delay_ms(larger: bool, threads: int = 1, bytes_remain: bool = False) -> float:
    facts = facts_of(sharing, threads=threads)
    calls = facts.first
    mask = buckets_of_ddp(calls) & ((calls.size_bytes > LARGE) == larger)
    assert mask.sum() == facts.steps
    delays = delays_by(calls, mask, bytes_remain)
    inside = np.isin(delays.at.begin_ns, calls.table.issue_ns[calls.step >= 0])
    return float(delays.amount[inside].sum()) / facts.steps / 1e6


def test_calls_in_progress_share_the_delay_by_their_bytes() -> None:
    # Both buckets are complete while the delay lasts, so their bytes divide the 4 ms by 3 : 1.
    assert delay_ms(larger=True) == pytest.approx(3.0, abs=0.01)
    assert delay_ms(larger=False) == pytest.approx(1.0, abs=0.01)


def test_calls_whose_bytes_others_carry_free_hardly_anything() -> None:
    assert delay_ms(larger=True, bytes_remain=True) == pytest.approx(0.0, abs=0.01)


def test_helper_threads_are_not_told_from_intra_op_threads() -> None:
    assert delay_ms(larger=True, threads=4) == 0.0
