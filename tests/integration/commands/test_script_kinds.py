from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from commprof.analysis.world import WorldResult
from commprof.capture.boot import environment
from commprof.trace.reader import read_trace
from tests.support.analysed import analyse_run, problems_of
from tests.support.machines.commands import TORCHRUN, finish, fork
from tests.support.machines.fork_server import Forked
from tests.support.machines.programs.programs import needs

SCRIPTS = Path(__file__).parents[2] / "support" / "scripts"
#: C++ prints this line if a process ends while it still has threads of its own.
_TORCH_ABORTS = "terminate called without an active exception"
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Twice:
    plain: subprocess.CompletedProcess[str]
    recorded: subprocess.CompletedProcess[str]
    directory: Path

    def report(self) -> WorldResult:
        (world,) = analyse_run(self.directory).worlds
        return world


def ranks_lines(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("rank "))


def run_twice(
    directory: Path, script: str, *arguments: str, launcher: tuple[str, ...] = TORCHRUN
) -> Twice:
    traces = directory / "traces"

    def begin(run: str, env: dict[str, str]) -> Forked:
        given = [argument.format(run=directory / run) for argument in arguments]
        command = (*launcher, str(SCRIPTS / f"{script}.py"), *given)
        return fork(*command, OMP_NUM_THREADS="1", **env)

    processes = begin("plain", {}), begin("recorded", environment(traces))
    plain, recorded = (finish(process, timeout_s=240) for process in processes)
    if plain.returncode and _TORCH_ABORTS in plain.stderr:
        plain = finish(begin("plain_again", {}), timeout_s=240)
    return Twice(plain, recorded, traces)


def assert_unchanged(twice: Twice, exit_code: int = 0) -> None:
    assert twice.plain.returncode == exit_code, twice.plain.stderr
    assert twice.recorded.returncode == exit_code, twice.recorded.stderr
    assert twice.recorded.stdout.count("\n") == twice.plain.stdout.count("\n")
    assert ranks_lines(twice.recorded.stdout) == ranks_lines(twice.plain.stdout)
    assert len(ranks_lines(twice.plain.stdout)) == 2
    ours = [line for line in twice.recorded.stderr.splitlines() if "commprof" in line]
    assert [line for line in ours if not line.startswith("commprof: recorded to ")] == []


@dataclass(frozen=True)
class Kind:
    script: str
    needs: tuple[str, ...] = field(default=(), kw_only=True)
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = TORCHRUN
    steps: int = 8
    operations: tuple[str, ...] = ("all_reduce",)
    samples_source: str = ""
    steps_end: str = "update"
    phases: tuple[str, ...] = ("forward", "backward")


KINDS = {
    "plain": Kind("plain", steps=12, samples_source="dataloader"),
    "gan": Kind("gan"),
    "python hook": Kind("comm_hook", ("python",)),
    "fp16 hook": Kind("comm_hook", ("fp16",)),
    "builtin hook": Kind("comm_hook", ("builtin",)),
    "powersgd hook": Kind("comm_hook", ("powersgd",)),
    "spawn": Kind("spawn", ("{run}",), launcher=()),
    "fsdp2": Kind(
        "fsdp2",
        operations=("all_gather_into_tensor", "reduce_scatter_tensor"),
        phases=("forward", "backward", "optimizer"),
    ),
    "hf trainer": Kind(
        "hf_trainer",
        ("{run}",),
        steps=12,
        samples_source="dataloader",
        needs=("transformers", "accelerate"),
    ),
    "groups": Kind("groups", steps=12),
    "accumulate": Kind("loops", ("accumulate",)),
    "scaler": Kind("loops", ("scaler",)),
    "manual": Kind("loops", ("manual",), steps_end="backward"),
    "marked": Kind("loops", ("marked",), steps_end="declared"),
    # The loop has seven updates. The step with two iterations is left out of all figures.
    "skip": Kind("loops", ("skip",), steps=6),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(*kind.needs)) for name, kind in KINDS.items()]
)
def test_a_script_of_each_kind_runs_unchanged_and_is_recorded(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    twice = run_twice(tmp_path, kind.script, *kind.arguments, launcher=kind.launcher)
    assert_unchanged(twice)

    world = twice.report()
    assert (world.world_size, world.timing.steps) == (2, kind.steps)
    assert not world.recording.missing_ranks
    assert problems_of(world) == []
    assert not world.recording.dropped_records
    assert (world.timing.steps_end, world.training.samples_source) == (
        kind.steps_end,
        kind.samples_source,
    )
    for rank in range(2):
        trace = read_trace(twice.directory / f"rank_{rank}.trace")
        names = {trace.metadata["ops"][op] for op in trace.records["op"]}
        assert names >= set(kind.operations)
    assert world.timing.merged_steps == (name == "skip")
    for phase in kind.phases:
        assert getattr(world.parts, f"{phase}_ms") > 0, phase
    parts = ("data", "forward", "backward", "exposed", "optimizer", "other")
    total_ms = sum(getattr(world.parts, f"{part}_ms") for part in parts)
    assert total_ms == pytest.approx(world.parts.step_ms)
    assert len(list(twice.directory.iterdir())) == 2  # torchrun's own process left no file
