"""How compressors' messages travel between real ranks, in which the assertions are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("world_size", "name"),
    [
        (2, "own_connections"),
        (3, "own_connections"),
        (2, "off_on_one_rank"),
        (2, "switched_to_nonsense"),
        (3, "no_way_to_one_rank"),
        (2, "garbage_while_connecting"),
        (2, "again_after_an_error"),
        (2, "one_stands_still"),
        (2, "stopped_while_it_waits"),
        (2, "forked_child_ends"),
    ],
)
def test_messages(tmp_path: Path, world_size: int, name: str) -> None:
    run_module("tests.support.ranks.compressors.connections", [str(tmp_path), name], world_size)
