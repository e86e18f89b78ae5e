from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from commprof.workloads.loop import LoopResult, train
from commprof.workloads.spec import Shard, parse_spec
from tests.support.ranks.alone import alone

_SCRIPT = "from commprof.workloads.models.timed import Stopper\nStopper().stop_for({})"
_WITHIN_S = 60.0


def stopped_process(duration_ns: int) -> int:
    """Returns the pid of a stopped process; the caller must wait for this process."""
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT.format(duration_ns)])
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    process.returncode = 0  # Popen must not wait for the process
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGSTOP
    return process.pid


def test_a_paused_process_is_stopped_and_continues() -> None:
    pid = stopped_process(1_000_000_000)
    _, status = os.waitpid(pid, os.WCONTINUED)
    assert os.WIFCONTINUED(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_pausing_child_ends_if_its_stopped_parent_is_killed() -> None:
    pid = stopped_process(3600 * 10**9)
    (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    await_end(child)


def await_end(pid: int) -> None:
    end = time.monotonic() + _WITHIN_S
    while runs(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


_KILLED = """
import os, signal
from commprof.workloads.models.timed import Stopper
stopper = Stopper()
stopper.stop_for(1_000_000)
print("went on", flush=True)
(child,) = open(f"/proc/self/task/{os.getpid()}/children").read().split()
os.kill(int(child), signal.SIGKILL)
os.waitid(os.P_PID, int(child), os.WEXITED | os.WNOWAIT)
stopper.stop_for(1_000_000)
"""


def test_a_killed_pausing_child_is_reported() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "went on\n")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("commprof.errors.CommprofError: the child process that pauses process ")
    assert last.endswith("choose another late_phase")


MS = 1_000_000
ROOT = Path(__file__).parents[3]


class SilentRecorder:
    def phase(self, name: str) -> AbstractContextManager[object]:
        return nullcontext()

    def step(self) -> None: ...

    def set_enabled(self, on: bool) -> None: ...


def run(spec: str, steps: int = 10, rank: int = 0) -> tuple[LoopResult, dict[str, list[int]]]:
    shard = Shard(rank, world_size=2, per_rank_batch=16, steps=steps, seed=0)
    trainee = parse_spec(spec).build(shard)
    result = train(alone(trainee, shard), SilentRecorder(), steps)
    truth = trainee.truth()
    assert truth is not None
    return result, truth


def least_ms(values_ns: list[int]) -> float:
    return min(values_ns) / MS


@pytest.mark.measures
def test_each_timed_phase_lasts_the_requested_time() -> None:
    spec = "timed:data_ms=3,forward_ms=1/2/0/1,backward_ms=4/0/5/2,optimizer_ms=2,gradient_mb=1"
    result, truth = run(spec)

    assert all(len(values) == 10 for values in truth.values())
    assert least_ms(truth["data_ns"]) == pytest.approx(3, abs=1)
    assert least_ms(truth["forward_ns"]) == pytest.approx(4, abs=1)
    assert least_ms(truth["backward_ns"]) == pytest.approx(11, abs=1)
    assert least_ms(truth["optimizer_ns"]) == pytest.approx(2, abs=1)
    assert least_ms(result.step_ns) == pytest.approx(3 + 4 + 11 + 2, abs=2)


def test_no_phase_ends_before_its_deadline() -> None:
    _, truth = run("timed:layers=3,backward_ms=1/2/3,forward_ms=1")

    assert min(truth["backward_ns"]) >= 6 * MS
    assert min(truth["forward_ns"]) >= 3 * MS


@pytest.mark.measures
def test_large_gradients_fit_within_the_requested_backward_time() -> None:
    _, truth = run("timed:layers=2,backward_ms=20/0,gradient_mb=0/25,forward_ms=0,data_ms=0")

    assert least_ms(truth["backward_ns"]) == pytest.approx(20, abs=1)


def test_timed_gradients_have_the_requested_size_and_a_value_per_rank() -> None:
    workload = parse_spec("timed:layers=3,gradient_mb=0.1/0/0.2,forward_ms=0,backward_ms=0")
    shard = Shard(1, world_size=2, per_rank_batch=16, steps=1, seed=0)
    trainee = workload.build(shard)
    training = alone(trainee, shard)
    for _ in range(2):
        trainee.backward(trainee.forward(trainee.model, next(trainee.batches(0))))
        gradients = [p.grad for p in trainee.model.parameters()]
        assert [g.numel() for g in gradients if g is not None] == [25_000, 50_000]
        assert all(g.eq(2).all() for g in gradients if g is not None)
        training.update()

    assert workload.parameter_count == 75_000
    assert all(p.grad is None and p.eq(0).all() for p in trainee.model.parameters())


def test_gradients_may_be_drawn_from_a_normal_distribution() -> None:
    workload = parse_spec("timed:layers=2,gradient_mb=0.4,gradients=normal,backward_ms=0")

    def gradients(rank: int) -> list[torch.Tensor]:
        trainee = workload.build(Shard(rank, world_size=2, per_rank_batch=16, steps=1, seed=0))
        trainee.backward(trainee.forward(trainee.model, next(trainee.batches(0))))
        return [p.grad for p in trainee.model.parameters()]

    mine, others = gradients(0), gradients(1)
    for gradient in (*mine, *others):
        assert abs(gradient.mean()) < 0.02
        assert abs(gradient.std() - 1) < 0.02
    assert not torch.equal(mine[0], mine[1])
    assert not torch.equal(mine[0], others[0])
    assert torch.equal(mine[0], gradients(0)[0])


@pytest.mark.measures
@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
def test_a_late_rank_is_late_in_its_phase_only(phase: str) -> None:
    spec = (
        "timed:layers=1,data_ms=1,forward_ms=1,backward_ms=1,late_rank=1,late_ms=60,late_every=2,"
        f"late_phase={phase}"
    )
    _, late = run(spec, steps=4, rank=1)
    _, punctual = run(spec, steps=4, rank=0)

    for name in ("data", "forward", "backward"):
        is_late = [value > 50 * MS for value in late[f"{name}_ns"]]
        assert is_late == ([False, True] * 2 if name == phase else [False] * 4)
        assert max(punctual[f"{name}_ns"]) < 50 * MS


@pytest.mark.measures
def test_a_stopped_rank_is_late_in_forward() -> None:
    spec = (
        "timed:layers=1,data_ms=1,forward_ms=1,backward_ms=1,late_rank=1,late_ms=60,late_every=2,"
        "late_phase=pause"
    )
    # A new process is stopped, because a shell would take this process for a stopped job.
    code = (
        "import json; from tests.unit.workloads.test_timed import run; "
        f"print(json.dumps(run({spec!r}, 6, 1)[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    late = json.loads(done.stdout)
    _, punctual = run(spec, steps=4, rank=0)

    # With torch 2.11 a process's first step takes 60 ms by itself, so two steps are left out.
    assert [value >= 60 * MS for value in late["forward_ns"][2:]] == [False, True] * 2
    assert all(value >= 1 * MS for value in punctual["forward_ns"])


def test_description_names_the_late_rank() -> None:
    text = parse_spec("timed:late_rank=2,late_ms=20,late_every=3").describe()

    assert "backward 16 ms" in text
    assert "Rank 2 is 20 ms late in backward in 1 of 3 steps." in text
    text = parse_spec("timed:late_rank=2,late_ms=20,late_phase=pause").describe()
    assert "Rank 2 is stopped for 20 ms in forward in 1 of 1 steps." in text
