from __future__ import annotations

import json
import re

import pytest

from tests.support.machines.faults.victims import finish, run_module, start
from tests.support.ranks.compressors.victim import EXIT_CODE


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_surviving_ranks_raise_soon_after_a_rank_dies_during_compression(world_size: int) -> None:
    processes = start("tests.support.ranks.compressors.victim", [], world_size)
    *others, victim = [finish(process) for process in processes]
    assert victim.returncode == EXIT_CODE
    for rank, ended in enumerate(others):
        assert ended.returncode == 0, ended.stderr
        (told,) = ended.said
        place = rf"compressor int8 failed on rank {rank} in bucket \d of step 2: "
        first, second = told["errors"]
        assert re.search(place, first), first
        assert second == first
        assert told["seconds"] < 20  # the group's timeout is half an hour
    assert json.dumps(victim.said) == "[]"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (
            "shape",
            (
                r"compressor int8 failed on rank 0 in bucket 0 of step 0: .*: rank 1: it closed "
                "the connection",
                "commprof: a bucket has 66048 values, but its parameters have 65923$",
            ),
        ),
        (
            "dtype",
            (
                r"rank 0 has parameter '0.weight \[128, 128\] torch.float32 on cpu', but rank 1 "
                r"has '0.weight \[128, 128\] torch.bfloat16 on cpu'",
                r"rank 1 has parameter '0.weight .*bfloat16.*', but rank 0 has ",
            ),
        ),
        (
            "sparse",
            (
                r"rank 0 has parameter 'weight \[50, 8\] torch.float32 on cpu', but rank 1 "
                r"has 'weight .*, sparse gradient'",
                r"rank 1 has parameter 'weight .*, sparse gradient', but rank 0 has ",
            ),
        ),
    ],
)
def test_all_ranks_raise_soon_where_one_rank_cannot_compress_its_gradient(
    what: str, told: tuple[str, str]
) -> None:
    ranks = run_module("tests.support.ranks.compressors.refusal", [what], 2)
    for ended, expected in zip(ranks, told, strict=True):
        assert ended.returncode == 0, ended.stderr
        (said,) = ended.said
        assert re.search(expected, said["error"]), said
        assert said["seconds"] < 10
