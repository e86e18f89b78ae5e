"""The assertions are in the modules that the ranks run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.ddp_variants import SETTINGS
from tests.support.ranks.compressors.train import cases

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
def test_compressor_checks_pass_on_real_ranks(
    tmp_path: Path, world_size: int, names: tuple[str, ...]
) -> None:
    run_module(_CHECKS, [str(tmp_path), *names], world_size)


def test_compressors_handle_sparse_and_unused_gradients() -> None:
    run_module("tests.support.ranks.compressors.gradients", [], 2)


def test_torch_operations_replace_the_native_module_where_it_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMPROF_NATIVE", "0")
    run_module(_CHECKS, [str(tmp_path), "without_the_module", "torch_operations"], 2)


@pytest.mark.parametrize("world_size", [2, 3])
def test_compressed_training_ends_bit_identical_on_all_ranks(world_size: int) -> None:
    outputs = run_module("tests.support.ranks.compressors.train", [], world_size)
    by_rank = [json.loads(output.strip().splitlines()[-1]) for output in outputs]
    first = by_rank[0]
    assert set(first) == {f"{scheme} {setting}" for scheme, setting in cases()}
    for results in by_rank:
        assert results == first
    for setting in SETTINGS:
        assert first[f"none {setting}"] == first[f"plain {setting}"], setting
        assert first[f"int8 {setting}"] != first[f"plain {setting}"], setting


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
def test_connection_checks_of_compressors_pass_on_real_ranks(
    tmp_path: Path, world_size: int, name: str
) -> None:
    run_module("tests.support.ranks.compressors.connections", [str(tmp_path), name], world_size)
