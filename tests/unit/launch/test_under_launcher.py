from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from commprof.commands import main
from commprof.errors import CommprofError, UsageError
from commprof.launch.rendezvous import ALONE, Rendezvous
from commprof.launch.under_launcher import (
    LaunchedRank,
    StoreMessage,
    adopt_rank,
    await_file,
    given_rank,
    rank_and_world_size,
)
from tests.support.machines.ranks import free_port


def test_the_launcher_of_one_machine_uses_any_free_port() -> None:
    config = ALONE.launch_config(4)
    assert (config["min_nodes"], config["nproc_per_node"]) == (1, 4)
    assert config["rdzv_endpoint"] == "localhost:0"


def test_machines_divide_the_ranks_equally_in_order() -> None:
    rendezvous = Rendezvous("first:29500", nodes=3, node_rank=2)
    config = rendezvous.launch_config(12)
    assert (config["min_nodes"], config["max_nodes"], config["nproc_per_node"]) == (3, 3, 4)
    assert config["rdzv_configs"]["rank"] == 2
    assert config["run_id"] == Rendezvous("first:29500", 3, 0).launch_config(12)["run_id"]
    assert not rendezvous.is_first


def test_each_world_size_of_a_sweep_has_its_own_port() -> None:
    rendezvous = Rendezvous("first:29500", nodes=2)
    assert rendezvous.turn(3).endpoint == "first:29503"
    assert ALONE.turn(3) == ALONE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:1", 0, 0), "--nnodes 0 is out of range"),
        (("a:1", 2, 2), "--node-rank 2 is out of range (allowed: 0 to 1)"),
        ((None, 2, 0), "--nnodes needs --rdzv-endpoint"),
    ],
)
def test_rendezvous_arguments_out_of_range_are_refused(
    arguments: tuple[str | None, int, int], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        Rendezvous(*arguments)
    assert message in str(caught.value)


def test_indivisible_ranks_and_malformed_endpoints_are_refused() -> None:
    with pytest.raises(UsageError, match="5 ranks cannot be divided equally among 2 machines"):
        Rendezvous("localhost:1", nodes=2, node_rank=1).check(5)
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        Rendezvous("localhost").check(2)


@pytest.mark.parametrize("host", ["node..cluster", "x" * 64, "\udcff"])
def test_an_invalid_host_name_is_refused_on_every_machine(host: str) -> None:
    for node_rank in (0, 1):
        with pytest.raises(UsageError, match=r"is not HOST:PORT \(allowed: a name or address of "):
            Rendezvous(f"{host}:29500", 2, node_rank).check(2)


@pytest.mark.parametrize(
    ("nodes", "hint"),
    [
        (1, "choose another port, or leave --rdzv-endpoint out to get a free one"),
        (2, "choose another port, the same on all machines"),
    ],
)
def test_only_a_single_machine_is_advised_to_omit_the_endpoint(nodes: int, hint: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            Rendezvous(f"127.0.0.1:{port}", nodes).check(2)
    assert str(caught.value) == f"port {port} is in use on 127.0.0.1; {hint}"


TORCHRUN = {
    **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
    **{"GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "29501"},
}
STEP = {
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"},
    **{"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"},
    **{"SLURM_JOB_NODELIST": "node-[a-b]"},
}


def rank(**values: Any) -> LaunchedRank:
    given: dict[str, Any] = {
        **{"launcher": "torchrun", "rank": 0, "world_size": 2, "local_rank": 0, "local_ranks": 2},
        **{"hosts": 1, "address": "localhost", "port": 1},
    }
    return LaunchedRank(**{**given, **values})


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    launchers = ("SLURM_", "TORCHEL", "OMPI_", "PMI", "MV2_", "MPI_")
    names = {*TORCHRUN, *(name for name in os.environ if name.startswith(launchers))}
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    yield store.port
    del store  # This reference keeps the store alive.


def test_a_rank_started_by_torchrun_is_recognised() -> None:
    expected = LaunchedRank("torchrun", 5, 8, 1, 4, 2, "first", 29501)
    assert given_rank(TORCHRUN) == expected
    assert given_rank({**STEP, **TORCHRUN}, nodes=2) == expected
    counted = {name: value for name, value in TORCHRUN.items() if name != "GROUP_WORLD_SIZE"}
    assert given_rank(counted) == expected


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_rank_without_rank_or_master_variables_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"one of 8 ranks, but {name} is unset"):
        given_rank({key: value for key, value in TORCHRUN.items() if key != name})


def test_rank_and_world_size_are_read_and_wrong_variables_named() -> None:
    assert rank_and_world_size(TORCHRUN) == (5, 8)
    assert rank_and_world_size({"RANK": "0"}) is None
    with pytest.raises(UsageError, match=r"not a number: RANK, MASTER_PORT\. Use torchrun"):
        rank_and_world_size({"RANK": "-1", "WORLD_SIZE": "2", "MASTER_ADDR": "first"})


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WORLD_SIZE": "4"},
        {**TORCHRUN, "WORLD_SIZE": "1"},
        {**STEP, "SLURM_NTASKS": "2"},
        {key: value for key, value in STEP.items() if key != "SLURM_STEP_ID"},
    ],
)
def test_variables_of_no_launched_rank_give_no_rank(variables: dict[str, str]) -> None:
    assert given_rank(variables) is None


def test_a_slurm_task_with_a_given_number_of_machines_is_no_rank() -> None:
    assert given_rank({**STEP, "SLURM_NNODES": "1"}, nodes=1) is None


def test_a_rank_started_by_srun_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames node-[a-b]" ] || exit 1\necho node-a\necho node-b\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    port = 20_000 + 7 * 16 + 2
    assert given_rank(STEP) == LaunchedRank("srun", 3, 4, 1, 2, 2, "node-a", port)
    assert given_rank(STEP, endpoint="ib0:1234") == LaunchedRank("srun", 3, 4, 1, 2, 2, "ib0", 1234)
    own = given_rank({**STEP, "MASTER_ADDR": "x", "MASTER_PORT": "5"})
    assert own == LaunchedRank("srun", 3, 4, 1, 2, 2, "x", 5)
    alone = given_rank({**STEP, "SLURM_NNODES": "1"})
    assert alone == LaunchedRank("srun", 3, 4, 1, 4, 1, "localhost", port)
    with pytest.raises(UsageError, match="first host of 'c': give --rdzv-endpoint"):
        given_rank({**STEP, "SLURM_JOB_NODELIST": "c"})


MPI = {
    **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
    "OMPI_MCA_ess_base_jobid": "77",
}


def test_a_rank_started_by_mpirun_is_recognised() -> None:
    port = 20_000 + zlib.crc32(b"77") % 10_000
    assert given_rank(MPI) == LaunchedRank("mpirun", 1, 4, 1, 4, 1, "localhost", port)
    hydra = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    there = given_rank({**hydra, "MASTER_ADDR": "first", "MASTER_PORT": "5"})
    assert there == LaunchedRank("mpirun", 3, 4, 1, 2, 2, "first", 5)
    assert given_rank(hydra, endpoint="ib0:9") == LaunchedRank("mpirun", 3, 4, 1, 2, 2, "ib0", 9)
    with pytest.raises(UsageError, match="on several hosts, but MASTER_ADDR is unset: give mpirun"):
        given_rank(hydra)
    assert given_rank(MPI, nodes=4) is None
    assert given_rank({**MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None


def test_a_rank_of_mpirun_or_srun_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    for name, value in MPI.items():
        monkeypatch.setenv(name, value)
    adopt_rank()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == (
        *("1", "4"),
        "1",
    )
    assert rank_and_world_size(os.environ) == (1, 4)


def test_srun_with_a_task_per_node_starts_the_ranks_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**STEP, "SLURM_NTASKS": "2", "MASTER_ADDR": "x"}.items():
        monkeypatch.setenv(name, "1" if name == "SLURM_PROCID" else value)
    adopt_rank(nproc_given=True)
    assert "RANK" not in os.environ
    adopt_rank()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("1", "2")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--nproc 2", "--nproc 2 cannot be used: torchrun has started 2 ranks"),
        (
            "--world-sizes 1,2 --max-restarts 3",
            "--world-sizes 1,2, --max-restarts 3 cannot be used",
        ),
        ("--nnodes 2 --node-rank 0", "--nnodes 2, --node-rank 0 cannot be used"),
        ("--rdzv-endpoint a:1", "--rdzv-endpoint a:1 cannot be used"),
        ("--watchdog auto --metrics", "--watchdog auto, --metrics cannot be used"),
        (
            "--pin cores --threads-per-rank auto",
            "--pin cores, --threads-per-rank auto cannot be used",
        ),
        ("--dry-run --samples", "--dry-run, --samples cannot be used"),
        ("--strategy ddp,fsdp", "--strategy ddp,fsdp: torchrun has started 2 ranks"),
        ("train.py --lr 1", "torchrun ... -m commprof.wrap train.py"),
        ("--steps 0", "--steps 0 is out of range"),
    ],
)
def test_options_unusable_under_a_launcher_are_refused_in_one_line(
    words: str,
    expected: str,
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rank(port=port).export()
    monkeypatch.chdir(tmp_path)
    workload = [] if ".py" in words else ["--workload", "mlp", "--output", "run"]
    assert main(["run", *workload, *words.split()]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("commprof run: ")
    assert err.count("\n") == 1
    assert expected in err
    assert "without the launcher" in err or "--steps 0" in err
    assert list(tmp_path.iterdir()) == []


def test_several_hosts_need_an_output_directory(
    port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rank(port=port).export()
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert main(["run", "--workload", "mlp"]) == 2
    assert "2 machines need --output DIR, the same directory on all" in capfd.readouterr().err


def test_other_ranks_get_rank_0s_message_or_time_out(port: int) -> None:
    rank(port=port).export()
    word = StoreMessage(rank(port=port), patience_s=0.3)
    silent = r"rank 0 ended, or did not send settings within 0\.3 s"
    with pytest.raises(CommprofError, match=silent):
        word.hear()
    word.say(job="/a/job.json")
    assert word.hear() == {"job": "/a/job.json"}


def test_a_rank_that_cannot_reach_the_rendezvous_names_its_address() -> None:
    other = rank(rank=1, local_rank=1, port=free_port())
    other.export()
    words = f"rank 1 on .* did not reach localhost:{other.port}, the rendezvous of the 2 ranks of "
    with pytest.raises(CommprofError, match=words):
        StoreMessage(other, patience_s=0.5)


def test_a_rank_that_does_not_see_the_output_directory_fails(tmp_path: Path) -> None:
    await_file(tmp_path, rank())
    with pytest.raises(CommprofError, match=r"rank 1 on .* did not see .*/x, .*--output DIR"):
        await_file(tmp_path / "x", rank(rank=1), patience_s=0.1)
