from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.ddp_variants import SETTINGS, VARIANTS


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_gradients_after_20_steps_are_bit_identical(tmp_path: Path, world_size: int) -> None:
    # With 3 ranks, dividing by 3 and multiplying by 1/3 give different bits.
    outputs = run_module("tests.support.ranks.capture.ddp_variants", [str(tmp_path)], world_size)
    by_rank = [json.loads(output.strip().splitlines()[-1]) for output in outputs]
    for setting in SETTINGS:
        for results in by_rank:
            assert set(results[setting]) == set(VARIANTS)
            assert len(set(results[setting].values())) == 1, (setting, results[setting])
        assert (tmp_path / f"{setting}-hooked" / "rank_0.trace").stat().st_size > 10_000
