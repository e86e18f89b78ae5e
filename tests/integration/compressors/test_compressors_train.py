"""Every compressor trains, however DDP fills its buckets, with the same bits on all ranks."""

from __future__ import annotations

import json

import pytest

from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.ddp_variants import SETTINGS
from tests.support.ranks.compressors.train import cases

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_ranks_end_with_the_same_bits(world_size: int) -> None:
    outputs = run_module("tests.support.ranks.compressors.train", [], world_size)
    by_rank = [json.loads(output.strip().splitlines()[-1]) for output in outputs]
    first = by_rank[0]
    assert set(first) == {f"{scheme} {setting}" for scheme, setting in cases()}
    for results in by_rank:
        assert results == first
    for setting in SETTINGS:
        assert first[f"none {setting}"] == first[f"plain {setting}"], setting
        assert first[f"int8 {setting}"] != first[f"plain {setting}"], setting
