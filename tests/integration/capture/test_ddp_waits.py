from __future__ import annotations

import json
from pathlib import Path

import pytest

from commprof import _native
from commprof.analysis.step.exposure import exposures_of
from commprof.trace.reader import read_trace
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.ddp_waits_rank import LATE_S, MORE_STEPS, STEPS, WAYS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason=_native.native_error or ""),
]

MS = 1_000_000


@pytest.mark.parametrize("way", WAYS)
def test_waiting_for_gradients_is_exposed(tmp_path: Path, way: str) -> None:
    module = "tests.support.ranks.capture.ddp_waits_rank"
    outputs = run_module(module, [str(tmp_path), way], 2)
    mine, theirs = (json.loads(text.strip().splitlines()[-1]) for text in outputs)
    found = exposures_of(read_trace(tmp_path / "rank_0.trace"))

    def waited_ms(stretch: tuple[int, int]) -> float:
        begin_ns, end_ns = stretch
        inside = (found.begin_ns >= begin_ns) & (found.begin_ns < end_ns)
        known_ms = float(found.waited_ns[inside & (found.collective >= 0)].sum()) / MS
        exposed_ms = float(found.waited_ns[inside].sum()) / MS
        assert known_ms > 0.9 * exposed_ms
        return exposed_ms

    # Rank 0 also compiles in the first two steps, which do not count.
    for stretch, (late_begin_ns, _) in zip(mine[2:STEPS], theirs[2:STEPS], strict=True):
        least, most = (late_begin_ns - stretch[0]) / MS, (stretch[1] - stretch[0]) / MS
        assert least > 0.5 * LATE_S * 1e3
        assert 0.95 * least <= waited_ms(stretch) <= most
    if way == "join":
        length_ms = (mine[-1][1] - mine[-1][0]) / MS
        assert length_ms > 0.9 * MORE_STEPS * LATE_S * 1e3
        assert waited_ms(mine[-1]) > 0.8 * MORE_STEPS * LATE_S * 1e3
