"""The backend `commprof` on real ranks: values, training, and ranks that are missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.ranks import free_port, run_module

MODULE = "tests.support.shm_rank"


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_operation_gives_what_gloo_gives(world_size: int) -> None:
    for output in run_module(MODULE, ["collectives"], world_size):
        assert "equal" in output


@pytest.mark.parametrize("world_size", [2, 3])
def test_training_ends_with_the_same_parameters(world_size: int) -> None:
    for output in run_module(MODULE, ["training"], world_size):
        assert "same parameters" in output


def test_ranks_that_disagree_are_named_with_both_sizes() -> None:
    for output in run_module(MODULE, ["disagreement"], 2):
        assert "rank 0 does all_reduce fp32 sum of 12 bytes" in output
        assert "rank 1 does all_reduce fp32 sum of 16 bytes" in output


def test_ranks_of_several_hosts_get_gloo_and_are_told() -> None:
    outputs = run_module(MODULE, ["hosts"], 2)
    assert "2 hosts in this group, so it is gloo alone" in outputs[0]
    assert all("ProcessGroupGloo" in output for output in outputs)


def test_a_rank_that_dies_is_named_by_the_others() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, "lost"],
            env={
                **os.environ,
                **{"MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
                **{"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "3"},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert ranks[2].returncode == -signal.SIGKILL
    for rank, output in list(zip(ranks, outputs, strict=True))[:2]:
        assert rank.returncode == 0, output
        assert f"rank 2 (pid {ranks[2].pid}) is missing: its process has ended" in output
