from __future__ import annotations

import os
import signal

import pytest

from tests.support.machines.fork_server import Forked
from tests.support.machines.ranks import free_port, rank_env, run_module

pytestmark = pytest.mark.slow
MODULE = "tests.support.ranks.shm_rank"


HOSTS = ["a,a", "a,a,a", "a,a,b,b", "a,b,a,a,b"]


@pytest.mark.parametrize("hosts", HOSTS)
def test_collectives_over_shared_memory_give_the_results_of_gloo(hosts: str) -> None:
    for output in run_module(MODULE, ["collectives", hosts], hosts.count(",") + 1):
        assert "equal" in output


@pytest.mark.parametrize("hosts", ["a,a,a", "a,b,a,a,b"])
def test_large_all_reduces_give_the_known_sums(hosts: str) -> None:
    for output in run_module(MODULE, ["large", hosts], hosts.count(",") + 1):
        assert "as on paper" in output


@pytest.mark.parametrize("world_size", [2, 3])
def test_ddp_over_shared_memory_ends_with_the_parameters_of_gloo(world_size: int) -> None:
    for output in run_module(MODULE, ["training"], world_size):
        assert "same parameters" in output


DISAGREEMENTS = [
    ("fp32 sum of 12 bytes", "fp32 sum of 16 bytes"),
    ("fp32 sum of 4000000 bytes", "fp32 sum of 6000000 bytes"),
    ("fp32 sum of 8000000 bytes", "fp64 sum of 8000000 bytes"),
    ("fp32 sum of 0 bytes", "fp32 sum of 20000 bytes"),
]


@pytest.mark.parametrize("hosts", ["a,a", "a,a,b", "a,a,b,b"])
def test_mismatched_all_reduces_raise_an_error_that_names_both_calls(hosts: str) -> None:
    outputs = run_module(MODULE, ["disagreement", hosts], hosts.count(",") + 1)
    for output in outputs:
        for usual, odd in DISAGREEMENTS:
            assert f"does all_reduce {usual}, " in output
            assert f"rank {len(outputs) - 1} does all_reduce {odd}" in output


@pytest.mark.parametrize("hosts", ["a,a", "a,a,b"])
def test_tensors_restricted_by_autograd_are_exchanged_as_by_gloo(hosts: str) -> None:
    for output in run_module(MODULE, ["caller_state", hosts], hosts.count(",") + 1):
        assert "as from a kernel" in output


@pytest.mark.parametrize("hosts", ["a,a,a", "a,a,b,b"])
def test_a_collective_that_fails_on_one_rank_is_reported_by_the_others(hosts: str) -> None:
    outputs = run_module(MODULE, ["failing", hosts], hosts.count(",") + 1)
    for output in outputs[:-1]:
        assert output.count(f"rank {len(outputs) - 1} (pid ") >= (3 if hosts == "a,a,a" else 0)
        assert "gave up: " in output
        assert "can't allocate memory" in output


@pytest.mark.parametrize("hosts", ["a,a", "a,a,b"])
def test_a_barrier_waits_for_collectives_in_flight(hosts: str) -> None:
    for output in run_module(MODULE, ["barrier", hosts], hosts.count(",") + 1):
        assert "complete" in output


@pytest.mark.parametrize("hosts", ["a,a", "a,a,b,b"])
def test_a_rank_that_ends_its_group_or_comes_late_is_named_by_the_others(hosts: str) -> None:
    outputs = run_module(MODULE, ["ending", hosts], hosts.count(",") + 1)
    neighbour = outputs[-2]
    assert "left: it shut its process group down" in neighbour
    assert "gave up: abort() was called" in neighbour
    assert "it did not take part within 1000 ms" in neighbour


@pytest.mark.parametrize("hosts", ["a,a", "a,a,b,b", "a,b,a"])
def test_compressors_between_hosts_give_the_mean(hosts: str) -> None:
    for output in run_module(MODULE, ["hooks", hosts], hosts.count(",") + 1):
        assert "near the mean" in output


def test_a_host_with_too_little_shared_memory_uses_gloo_and_prints_why() -> None:
    outputs = run_module(MODULE, ["kind"], 2)
    assert "only gloo is used; reason from rank 0: cannot reserve" in outputs[0]
    assert "/dev/shm is too small" in outputs[0]
    assert all("ProcessGroupGloo" in output for output in outputs)


def test_ranks_that_are_alone_on_their_hosts_use_gloo() -> None:
    for output in run_module(MODULE, ["kind", "a,b"], 2):
        assert "ProcessGroupGloo" in output


def test_a_rank_that_dies_is_named_by_the_others() -> None:
    ranks, outputs = _lose_the_last("a,a,a")
    for rank, output in list(zip(ranks, outputs, strict=True))[:2]:
        assert rank.returncode == 0, output
        assert f"rank 2 (pid {ranks[2].pid}) is missing: its process has ended" in output


def test_a_rank_that_dies_on_another_host_ends_all_waiting() -> None:
    ranks, outputs = _lose_the_last("a,a,b,b")
    assert [rank.returncode for rank in ranks[:3]] == [0, 0, 0], outputs
    assert f"rank 3 (pid {ranks[3].pid}) is missing: its process has ended" in outputs[2]
    for output in outputs[:2]:
        assert "between hosts: " in output


def _lose_the_last(hosts: str) -> tuple[list[Forked], list[str]]:
    count = hosts.count(",") + 1
    here = {**os.environ, "MASTER_ADDR": "localhost"}
    port = free_port()
    ranks = [
        Forked(["-m", MODULE, "lost", hosts], {**here, **rank_env(rank, count, port)})
        for rank in range(count)
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert ranks[-1].returncode == -signal.SIGKILL
    return ranks, outputs
