from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from commprof.errors import RankFailedError, UsageError
from commprof.launch.elastic import launch, stop_fork_server
from commprof.launch.job import Job
from commprof.launch.rendezvous import Rendezvous
from tests.support.machines.commands import call, finish, fork
from tests.support.machines.ranks import free_port

MS = 1_000_000
ENDLESS = "timed:layers=1,gradient_mb=0.1"


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    yield
    stop_fork_server()


def results(job: Job) -> list[dict[str, Any]]:
    paths = [job.directory / f"rank_{rank}.json" for rank in range(job.world_size)]
    return [json.loads(path.read_text()) for path in paths]


def pid_of_rank(logs: Path, rank: int) -> int | None:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "fd/2") == str(logs / f"rank_{rank}.err"):
                return int(entry.name)
        except OSError:
            continue
    return None


def children() -> list[str]:
    found: list[str] = []
    kept = ("resource_tracker", "tests.support.machines.fork_server")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        if parent == os.getpid() and not any(name in command for name in kept):
            # The command of a zombie is empty.
            found.append(command)
    return found


def wait_until(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, f"waited in vain for: {what}"
        time.sleep(0.05)


def meanwhile(job: Job, action: Callable[[], None]) -> threading.Thread:
    def act() -> None:
        wait_until((job.directory / "progress").exists, "the first step")
        time.sleep(0.3)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_two_ranks_train_the_transformer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    workload = "transformer:vocab=64,d_model=16,feedforward=16,layers=1,sequence=8,samples=64"
    job = Job(workload, 2, tmp_path / "w2", steps=3, overhead_steps=5)
    launch(job, tmp_path / "logs")

    ranks = results(job)
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert ranks[0]["pid"] != ranks[1]["pid"]
    for rank in ranks:
        assert len(rank["step_ns"]) == len(rank["losses"]) == 3
        assert rank["samples"] == 3 * 16
        assert 0 < sum(rank["step_ns"]) / 1e9 <= rank["duration_s"]
        labels = [label for label, _ in rank["overhead"]]
        assert len(labels) == 5
        assert set(labels) <= {"on", "off_a", "off_b"}
        assert labels == [label for label, _ in ranks[0]["overhead"]]
        assert rank["truth"] is None
        # The tokens are random, so the loss stays near ln(64) = 4.16.
        assert rank["average_loss"] == pytest.approx(4.16, abs=0.5)
    assert ranks[0]["losses"] != ranks[1]["losses"]
    assert all((job.directory / f"rank_{rank}.trace").stat().st_size > 0 for rank in range(2))
    assert not (job.directory / "progress").exists()
    said = "2 ranks: 3 steps to train, then 5 to measure commprof's overhead\n"
    assert capfd.readouterr() == ("", said)


def test_the_fork_server_is_kept_for_the_next_world_size(tmp_path: Path) -> None:
    launch(Job(ENDLESS, 2, tmp_path / "w2", steps=1), tmp_path / "logs2")
    servers = children()
    launch(Job(ENDLESS, 1, tmp_path / "w1", steps=1, hook=False), tmp_path / "logs1")

    assert len(servers) == 1
    assert len(children()) == 1


@pytest.mark.slow
@pytest.mark.measures
def test_the_timed_workload_takes_the_requested_times_under_ddp(tmp_path: Path) -> None:
    spec = "timed:layers=3,backward_ms=20/10/10,gradient_mb=0/4/4,late_rank=1,late_ms=30"
    job = Job(spec, 2, tmp_path / "w2", steps=6)
    launch(job, tmp_path / "logs")

    for rank in results(job):
        late_ms = 30 if rank["rank"] == 1 else 0
        backward_ms = [value / MS for value in rank["truth"]["backward_ns"]]
        assert len(backward_ms) == 6
        # The machine may be busy, so only the fastest step is checked.
        assert 40 + late_ms <= min(backward_ms) < 40 + late_ms + 2
        assert sorted(rank["step_ns"])[2] >= (40 + 30) * MS


def test_a_rank_that_raises_is_named_and_its_traceback_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = Job(ENDLESS, 2, tmp_path / "w2", steps=2)
    (job.directory / "rank_1.json").mkdir(parents=True)
    with pytest.raises(RankFailedError, match="rank 1 failed: IsADirectoryError") as caught:
        launch(job, tmp_path / "logs")

    assert caught.value.rank == 1
    assert caught.value.process_exit_code == 1
    assert caught.value.log_path == tmp_path / "logs/rank_1.err"
    log = caught.value.log_path.read_text()
    assert "Traceback (most recent call last)" in log
    assert "in write_json" in log
    assert (job.directory / "rank_0.json").exists()
    assert children() == []
    assert capfd.readouterr() == ("", "2 ranks: 2 steps to train\n")


def test_a_killed_rank_is_named_and_not_the_peers_that_lose_it(tmp_path: Path) -> None:
    job = Job(ENDLESS, 3, tmp_path / "w3", steps=100_000)
    logs = tmp_path / "logs"

    def kill() -> None:
        pid = pid_of_rank(logs, 1)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    killer = meanwhile(job, kill)
    with pytest.raises(RankFailedError, match=r"rank 1 failed: .* ended by SIGKILL") as caught:
        launch(job, logs)
    killer.join()

    assert caught.value.process_exit_code == -signal.SIGKILL
    assert children() == []
    assert all(pid_of_rank(logs, rank) is None for rank in range(3))


def test_an_interrupt_ends_the_ranks_and_raises_keyboard_interrupt(tmp_path: Path) -> None:
    job = Job(ENDLESS, 2, tmp_path / "w2", steps=100_000)
    handler = signal.getsignal(signal.SIGTERM)
    interrupter = meanwhile(job, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        launch(job, tmp_path / "logs")
    interrupter.join()

    assert children() == []
    assert all(pid_of_rank(tmp_path / "logs", rank) is None for rank in range(2))
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_a_second_interrupt_ends_a_stopped_rank(tmp_path: Path) -> None:
    job = Job(ENDLESS, 2, tmp_path / "w2", steps=100_000)
    logs = tmp_path / "logs"

    def stop_a_rank_and_interrupt_twice() -> None:
        pid = pid_of_rank(logs, 1)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = meanwhile(job, stop_a_rank_and_interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        launch(job, logs)
    interrupter.join()

    assert children() == []
    assert all(pid_of_rank(logs, rank) is None for rank in range(2))


@pytest.mark.slow
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "launcher.py"
    script.write_text(
        "from pathlib import Path\n"
        "from commprof.launch.elastic import launch\n"
        "from commprof.launch.job import Job\n"
        "if __name__ == '__main__':\n"
        f"    here = Path({str(tmp_path)!r})\n"
        f"    launch(Job({ENDLESS!r}, 2, here / 'w2', steps=100_000), here / 'logs')\n"
    )
    launcher = subprocess.Popen([sys.executable, str(script)])
    wait_until((tmp_path / "w2/progress").exists, "the first step")
    assert pid_of_rank(tmp_path / "logs", 1) is not None
    launcher.kill()
    launcher.wait()

    wait_until(
        lambda: all(pid_of_rank(tmp_path / "logs", rank) is None for rank in range(2)),
        "the ranks to end",
    )


def test_ranks_start_from_an_environment_alone(tmp_path: Path) -> None:
    job = Job(ENDLESS, 2, tmp_path / "w2", steps=2)
    job.directory.mkdir()
    job.save(tmp_path / "job.json")
    command = ("-m", "commprof.launch.worker", str(tmp_path / "job.json"))
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [fork(*command, spare_count=0, **rendezvous, RANK=str(rank)) for rank in range(2)]

    assert [finish(rank).returncode for rank in ranks] == [0, 0]
    assert [len(rank["step_ns"]) for rank in results(job)] == [2, 2]


def test_a_rank_without_its_environment_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Job(ENDLESS, 2, tmp_path).save(tmp_path / "job.json")
    monkeypatch.delenv("RANK", raising=False)
    done = call("-m", "commprof.launch.worker", str(tmp_path / "job.json"))

    assert done.returncode == UsageError.exit_code
    assert done.stderr.startswith("commprof: RANK and WORLD_SIZE must be")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_given_rendezvous_endpoint_is_used(tmp_path: Path) -> None:
    job = Job(ENDLESS, 2, tmp_path / "w2", steps=1)
    launch(job, tmp_path / "logs", Rendezvous(f"127.0.0.1:{free_port()}"))

    assert len(results(job)) == 2


_ON_AN_UNKNOWN_HOST = f"""
import ctypes, socket, sys
from pathlib import Path
from commprof.launch.elastic import launch
from commprof.launch.job import Job

CLONE_NEWUTS = 0x4000000
assert ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0
socket.sethostname("nowhere.invalid")
launch(Job({ENDLESS!r}, 2, Path(sys.argv[1]), steps=1), Path(sys.argv[1]) / "logs")
"""


@pytest.mark.needs_netns
def test_ranks_start_where_the_host_name_has_no_address(tmp_path: Path) -> None:
    done = finish(fork("-c", _ON_AN_UNKNOWN_HOST, str(tmp_path / "w2")))
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("rank_?.json"))) == 2


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    job = Job(ENDLESS, 2, tmp_path / "w2", steps=1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is in use on 127.0.0.1"):
            launch(job, tmp_path / "logs", Rendezvous(f"127.0.0.1:{port}"))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("endpoint", ["29500", "localhost:", "localhost:99999", ":29500", "h:x"])
def test_an_invalid_rendezvous_endpoint_is_refused(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(UsageError, match=r"is not HOST:PORT .* e\.g\. localhost:29500"):
        launch(Job(ENDLESS, 2, tmp_path / "w2"), tmp_path / "logs", Rendezvous(endpoint))


@pytest.mark.parametrize("backend", ["nccl", "mpi", "ucc", "nonsense"])
def test_a_backend_that_cannot_be_used_is_refused(tmp_path: Path, backend: str) -> None:
    if dist.is_backend_available(backend):
        pytest.skip(f"this torch has {backend}")
    with pytest.raises(UsageError, match=f"backend '{backend}' .*: gloo"):
        launch(Job(ENDLESS, 2, tmp_path / "w2", backend=backend), tmp_path / "logs")


def test_an_unusable_workload_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'timed'"):
        launch(Job("timer", 2, tmp_path / "w2"), tmp_path / "logs")

    assert list(tmp_path.iterdir()) == []
