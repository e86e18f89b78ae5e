from __future__ import annotations

import argparse

import pytest

from commprof.commands.run import rendezvous_of
from commprof.errors import UsageError
from commprof.launch.rendezvous import Rendezvous

VARIABLES = (
    *("WORLD_SIZE", "LOCAL_RANK", "RANK"),
    *("SLURM_STEP_ID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_NTASKS"),
    *("SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"),
)
STEP = {"SLURM_STEP_ID": "0", "SLURM_NNODES": "3", "SLURM_NODEID": "2", "SLURM_NTASKS": "3"}
ENDPOINT = "first:29500"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def rendezvous(
    endpoint: str | None = None, nnodes: int | None = None, node_rank: int | None = None
) -> Rendezvous:
    args = argparse.Namespace(rdzv_endpoint=endpoint, nnodes=nnodes, node_rank=node_rank)
    found = rendezvous_of(args)
    assert (args.nnodes, args.node_rank) == (found.nodes, found.node_rank)
    return found


def inside(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_one_machine_is_assumed_unless_options_give_more() -> None:
    assert rendezvous() == Rendezvous()
    assert rendezvous(ENDPOINT) == Rendezvous(ENDPOINT)
    assert rendezvous(ENDPOINT, 2, 1) == Rendezvous(ENDPOINT, 2, 1)
    assert rendezvous(ENDPOINT, 2) == Rendezvous(ENDPOINT, 2, 0)


def test_machines_and_rank_come_from_a_slurm_step_with_one_task_per_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside(monkeypatch, STEP)
    assert rendezvous(ENDPOINT) == Rendezvous(ENDPOINT, 3, 2)
    assert rendezvous(ENDPOINT, 3) == Rendezvous(ENDPOINT, 3, 2)
    assert rendezvous(ENDPOINT, 3, 1) == Rendezvous(ENDPOINT, 3, 1)
    assert rendezvous(ENDPOINT, 2) == Rendezvous(ENDPOINT, 2, 0)


def test_a_slurm_step_on_some_nodes_of_a_job_has_its_own_number_of_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside(monkeypatch, {**STEP, "SLURM_NNODES": "4", "SLURM_STEP_NUM_NODES": "3"})
    assert rendezvous(ENDPOINT) == Rendezvous(ENDPOINT, 3, 2)


def test_slurm_variables_of_a_batch_script_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    inside(monkeypatch, {**STEP, "SLURM_NODEID": "0"})
    monkeypatch.delenv("SLURM_STEP_ID")
    assert rendezvous(ENDPOINT) == Rendezvous(ENDPOINT)


@pytest.mark.parametrize(
    ("tasks", "nodes", "endpoint"), [("8", "2", ENDPOINT), ("4", "1", None), ("2", "2", None)]
)
def test_slurm_tasks_that_would_each_start_a_sweep_are_refused(
    monkeypatch: pytest.MonkeyPatch, tasks: str, nodes: str, endpoint: str | None
) -> None:
    inside(monkeypatch, {**STEP, "SLURM_NTASKS": tasks, "SLURM_NNODES": nodes})
    with pytest.raises(
        UsageError, match=f"one of {tasks} tasks on {nodes} machines.*ntasks-per-node=1"
    ):
        rendezvous(endpoint)


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "4"}, {"WORLD_SIZE": "1", "LOCAL_RANK": "0"}])
def test_operator_machines_and_single_ranks_are_accepted(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    inside(monkeypatch, variables)
    assert rendezvous() == Rendezvous()
