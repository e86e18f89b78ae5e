"""Trials leave training as it was: what they take back, and what they never changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import run_module

pytestmark = pytest.mark.once_per_change(
    *("commprof/switching", "commprof/trials", "commprof/capture", "commprof/compressors"),
    *("csrc", "tests/support/trial_rank.py"),
)

SHORT = "rounds=3,block=2,warmup=2"


def digests(tmp_path: Path, plan: str, world_size: int) -> list[dict[str, Any]]:
    outputs = run_module("tests.support.trial_rank", [str(tmp_path), plan], world_size)
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]


def same_bits(by_rank: list[dict[str, Any]]) -> None:
    for rank, results in enumerate(by_rank):
        for kind, digest in results["untouched"].items():
            for how in ("declared", "found"):
                assert results[how][kind] == digest, (rank, how, kind)


def test_lossless_candidates_leave_no_trace(tmp_path: Path) -> None:
    # No step is taken back: every one of them is in the untouched run too.
    plan = f"bucket-cap=0.005,no-overlap,no-overlap+bucket-cap=0.01,headroom=0,{SHORT}"
    same_bits(digests(tmp_path, plan, 2))


def test_other_buckets_of_three_ranks_are_taken_back(tmp_path: Path) -> None:
    # Three ranks sum in an order that depends on the bucket.
    same_bits(digests(tmp_path, f"bucket-cap=0.005,no-overlap,{SHORT}", 3))


def test_noop_and_compressors_are_taken_back(tmp_path: Path) -> None:
    same_bits(digests(tmp_path, f"int8,topk:ratio=0.05+bucket-cap=0.005,{SHORT}", 2))
