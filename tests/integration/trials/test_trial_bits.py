"""Trials leave training as it was: what they take back, and what they never changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.slow

SHORT = "rounds=3,block=1,warmup=2"
#: No step is taken back: every one of them is in the untouched run too.
LOSSLESS = f"bucket-cap=0.005,no-overlap,no-overlap+bucket-cap=0.01,headroom=0,{SHORT}"
TAKEN_BACK = f"int8,topk:ratio=0.05+bucket-cap=0.005,{SHORT}"
#: Three ranks sum in an order that depends on the bucket.
OTHER_BUCKETS = f"bucket-cap=0.005,no-overlap,{SHORT}"


@pytest.mark.parametrize(
    ("plans", "world_size"), [((LOSSLESS, TAKEN_BACK), 2), ((OTHER_BUCKETS,), 3)]
)
def test_a_trial_leaves_every_bit_of_the_steps_that_it_keeps(
    tmp_path: Path, plans: tuple[str, ...], world_size: int
) -> None:
    arguments = [str(tmp_path), *plans]
    for rank, output in enumerate(
        run_module("tests.support.ranks.trial_rank", arguments, world_size)
    ):
        for plan, results in zip(plans, json.loads(output.strip().splitlines()[-1]), strict=True):
            for kind, digest in results["untouched"].items():
                for how in ("declared", "found"):
                    assert results[how][kind] == digest, (rank, plan, how, kind)
