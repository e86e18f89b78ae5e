"""Where launchers meet: what is refused, and what torch's launcher is told."""

from __future__ import annotations

import pytest

from commprof.errors import UsageError
from commprof.launch.rendezvous import ALONE, Meeting


def test_one_machine_takes_any_free_port() -> None:
    config = ALONE.launch_config(4)
    assert (config["min_nodes"], config["nproc_per_node"]) == (1, 4)
    assert config["rdzv_endpoint"] == "localhost:0"


def test_machines_share_the_ranks_in_their_order() -> None:
    meeting = Meeting("first:29500", nodes=3, node_rank=2)
    config = meeting.launch_config(12)
    assert (config["min_nodes"], config["max_nodes"], config["nproc_per_node"]) == (3, 3, 4)
    assert config["rdzv_configs"]["rank"] == 2
    assert config["run_id"] == Meeting("first:29500", 3, 0).launch_config(12)["run_id"]
    assert not meeting.is_first


def test_each_world_size_of_a_sweep_has_a_port_of_its_own() -> None:
    meeting = Meeting("first:29500", nodes=2)
    assert meeting.turn(3).endpoint == "first:29503"
    assert ALONE.turn(3) == ALONE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:1", 0, 0), "--nnodes 0 is out of range"),
        (("a:1", 2, 2), "--node-rank 2 is out of range (allowed: 0 to 1)"),
        ((None, 2, 0), "--nnodes needs --rdzv-endpoint"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[str | None, int, int], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Meeting(*arguments)
    assert message in str(caught.value)


def test_ranks_must_divide_and_the_endpoint_be_one() -> None:
    with pytest.raises(UsageError, match="5 ranks do not divide among 2 machines"):
        Meeting("localhost:1", nodes=2, node_rank=1).check(5)
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        Meeting("localhost").check(2)
