"""Ten million events, a killed process, and what it takes to read them."""

from __future__ import annotations

import pytest

from commprof import _native
from tests.support.ranks.capture.many_events import many_events

pytestmark = pytest.mark.skipif(_native.native is None, reason="needs the C++ module")

_RECORD_BYTES = 64
_PYTHON_BYTES = 300 << 20
"""Python with numpy, and room for what its allocator keeps."""


@pytest.mark.slow
def test_ten_million_events_are_kept_and_read_in_bounded_memory() -> None:
    found = many_events(10_000_000)
    assert found.all_accounted_for, found
    assert found.found > 5_000_000, found  # on a busy machine the rest was dropped, and counted
    assert found.trace_bytes < 1.01 * _RECORD_BYTES * found.found, found
    # The file, its records, and the records once more in order of time, with that order.
    assert found.peak_bytes < 3.2 * found.trace_bytes + _PYTHON_BYTES, found


def test_a_stop_adds_a_record_that_is_no_step() -> None:
    found = many_events(10_000, stops=True)
    assert found.pauses == 1, found
    assert found.all_accounted_for, found
