"""A rank that dies while buckets are compressed: the others raise, soon, and end."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.machines.victims import finish, start
from tests.support.ranks.compressors_victim import EXIT_CODE

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_others_raise_and_end(world_size: int) -> None:
    processes = start("tests.support.ranks.compressors_victim", [], world_size)
    *others, victim = [finish(process) for process in processes]
    assert victim.returncode == EXIT_CODE
    for rank, ended in enumerate(others):
        assert ended.returncode == 0, ended.stderr
        (told,) = ended.said
        place = rf"compressor int8 failed on rank {rank} in bucket \d of step 2: "
        first, second = told["errors"]
        assert re.search(place, first), first
        assert second == first  # nothing is tried any more
        assert told["seconds"] < 20  # not the half hour of the group's timeout
    assert json.dumps(victim.said) == "[]"
