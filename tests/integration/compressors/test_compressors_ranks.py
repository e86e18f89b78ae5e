"""What compressors promise, on real ranks, in which the assertions are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.slow

_CHECKS = "tests.support.ranks.compressors.checks"


@pytest.mark.parametrize(
    ("world_size", "names"),
    [
        (2, ("many_buckets", "not_finite", "other_types_pass", "states_merge", "traced")),
        (3, ("many_buckets", "not_finite", "state_continues", "restarts", "torch_operations")),
        (2, ("disagreement_is_told",)),
        (2, ("headers_disagree",)),
    ],
)
def test_compressors_keep_their_promises(
    tmp_path: Path, world_size: int, names: tuple[str, ...]
) -> None:
    run_module(_CHECKS, [str(tmp_path), *names], world_size)


def test_unusual_gradients() -> None:
    run_module("tests.support.ranks.compressors.gradients", [], 2)


def test_torch_operations_stand_in_for_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMPROF_NATIVE", "0")
    run_module(_CHECKS, [str(tmp_path), "without_the_module", "torch_operations"], 2)
