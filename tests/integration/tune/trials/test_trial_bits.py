from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from commprof.trace.reader import read_trace
from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.slow

WAYS = ("declared", "found")
SHORT = "rounds=3,block=1,warmup=2"
LOSSLESS = (
    "bucket-cap=0.005,no-overlap,no-overlap+bucket-cap=0.01,first-bucket=0.005,"
    f"gradient-as-bucket-view=true,headroom=0,{SHORT}"
)
TAKEN_BACK = f"int8,topk:ratio=0.05+bucket-cap=0.005,{SHORT}"
#: Other buckets change the order in which the values of three ranks are summed.
OTHER_BUCKETS = f"bucket-cap=0.005,no-overlap,{SHORT}"


OWN_GROUP = "scatter-group=own," * (torch.__version__ >= (2, 13))
SETTINGS = (
    f"reshard-after-forward=true,reshard-after-forward=false,prefetch=1,{OWN_GROUP}"
    f"headroom=0,{SHORT}"
)
SETTINGS_TAKEN_BACK = f"reduce-dtype=bf16,reshard-after-forward=false+prefetch=2,{SHORT}"


@pytest.mark.parametrize(
    ("kind", "plans", "world_size"),
    [
        ("ddp", (LOSSLESS, TAKEN_BACK), 2),
        ("ddp", (OTHER_BUCKETS,), 3),
        ("fsdp", (SETTINGS, SETTINGS_TAKEN_BACK), 2),
        ("hsdp", (SETTINGS_TAKEN_BACK,), 4),
    ],
)
def test_steps_kept_by_a_trial_train_bit_identically_to_a_run_without_it(
    tmp_path: Path, kind: str, plans: tuple[str, ...], world_size: int
) -> None:
    arguments = [kind, str(tmp_path), *plans]
    for rank, output in enumerate(
        run_module("tests.support.ranks.trial_rank", arguments, world_size)
    ):
        for plan, results in zip(plans, json.loads(output.strip().splitlines()[-1]), strict=True):
            for kind, digest in results["untouched"].items():
                for how in WAYS:
                    assert results[how][kind] == digest, (rank, plan, how, kind)
    for number, how in itertools.product(range(len(plans)), WAYS):
        trace = read_trace(tmp_path / str(number) / how / "rank_0.trace")
        assert trace.metadata["trial"]["left_out"] == {}
