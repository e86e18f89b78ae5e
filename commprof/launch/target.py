"""Targets of ``commprof run``: a built-in workload, or the user's script."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.machinery
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from commprof import invocation, satellites, variables
from commprof.errors import RankFailedError, UsageError
from commprof.interrupts import ends_at_once
from commprof.launch.rendezvous import Rendezvous
from commprof.workloads.options import TrainingOptions


@dataclass(frozen=True)
class Preview:
    """Description of the processes that one world size would start."""

    command: str
    """Command of each rank."""
    environment: dict[str, str]
    """Environment variables of each rank, in addition to this process's and torchrun's."""
    details: tuple[str, ...]
    """Sentences about the training, and about the memory that the ranks need."""


class Target(Protocol):
    """Interface of the job that ``commprof run`` starts at each world size."""

    #: Part of the default run directory's name.
    name: str
    #: Strategy as on the command line; empty for a script.
    strategy: str

    def check(self, world_sizes: list[int], rendezvous: Rendezvous) -> str:
        """Checks the target; returns its description for the report's heading.

        rendezvous: rendezvous of the first world size. ``world_sizes[i]`` uses
        ``rendezvous.turn(i)``.

        Raises:
            UsageError: the target cannot run with these options.
        """

    def settings(self) -> dict[str, Any]:
        """Returns the target's options, for ``run.json``."""

    def launch(self, world_size: int, directory: Path, rendezvous: Rendezvous) -> None:
        """Runs all ranks. The ranks write their traces to ``directory``.

        Raises:
            CommprofError: a rank failed, or the ranks could not be started.
        """

    def preview(self, world_size: int, directory: Path, local_ranks: int) -> Preview:
        """Describes what ``launch`` would start. Call ``check`` first.

        local_ranks: number of ranks on this machine.
        """

    def exit_code(self, error: RankFailedError) -> int:
        """Returns the exit code of ``commprof run`` after a rank failed."""


class WorkloadTarget:
    """A built-in workload with one strategy."""

    def __init__(self, args: argparse.Namespace, strategy: str = "ddp") -> None:
        """Keeps the arguments of ``commprof run``."""
        self._args = args
        self._workload = _given(args, "workload")
        self._settings: dict[str, Any] = {}
        self.strategy = strategy
        self.name = self._workload.partition(":")[0]

    def check(self, world_sizes: list[int], rendezvous: Rendezvous) -> str:
        """Checks the job of each world size; returns the workload's description."""
        check = _elastic().check
        plans = [
            check(self._job(size, Path("unused")), rendezvous.turn(turn))
            for turn, size in enumerate(world_sizes)
        ]
        workload = plans[0].workload
        self._settings = {
            "training": plans[0].options.chosen(),
            "split_dependence": workload.split_dependence,
        }
        return workload.describe()

    def refuse(self, world_sizes: list[int]) -> None:
        """Raises UsageError for a job that no machine could run; does not check this machine."""
        for size in world_sizes:
            self._job(size, Path("unused")).plan()

    def settings(self) -> dict[str, Any]:
        """Returns the workload's options, for ``run.json``."""
        return {
            "workload": self._workload,
            "strategy": self.strategy,
            "scaling": _given(self._args, "scaling"),
            "seed": _given(self._args, "seed"),
            **self._settings,
            **_asked(self._args),
        }

    def launch(self, world_size: int, directory: Path, rendezvous: Rendezvous) -> None:
        """Trains the workload; restarts the ranks after a failure, up to --max-restarts times."""
        from commprof.launch.attempts import run_attempts

        launch = _elastic().launch
        cpu_sets = self._args.placement.pinning(world_size).text
        job, logs = self._job(world_size, directory), directory / "logs"
        run_attempts(
            lambda attempt: launch(job, logs, rendezvous, cpu_sets, attempt),
            directory,
            self._args.max_restarts,
        )

    def preview(self, world_size: int, directory: Path, local_ranks: int) -> Preview:
        """Describes the ranks' command, variables, training and memory."""
        from commprof.launch.model_memory import model_memory
        from commprof.workloads.options import available_bytes

        job = self._job(world_size, directory)
        plan, memory = job.plan(), model_memory(job, local_ranks)
        shortage = memory.shortage(local_ranks, available_bytes()) if job.backend != "nccl" else ""
        return Preview(
            f"{invocation.module('commprof.launch.worker')}, forked from one server that has "
            "imported torch",
            {"OMP_NUM_THREADS": str(job.threads_per_rank)},
            (
                f"{plan.steps} steps of {job.accumulate} x {plan.per_rank_batch} samples per rank, "
                f"{job.strategy}; then {job.overhead_steps} steps to measure commprof's own cost.",
                _training(job, plan.options),
                memory.text,
                *([shortage] if shortage else []),
            ),
        )

    def exit_code(self, error: RankFailedError) -> int:
        """Returns the exit code that the error gives for the failed rank."""
        return error.exit_code

    def _job(self, world_size: int, directory: Path) -> Any:
        from commprof import _native
        from commprof.launch.job import Job

        args = self._args
        overhead_steps = _given(args, "overhead_steps")
        given = {name: getattr(args, name) for name in TRAINING_OPTIONS}
        return Job(
            workload=self._workload,
            world_size=world_size,
            directory=directory,
            steps=self._steps(),
            epochs=args.epochs,
            batch_size=args.batch_size,
            scaling=_given(args, "scaling"),
            backend=_given(args, "backend"),
            overhead_steps=0 if args.trial else overhead_steps,
            seed=_given(args, "seed"),
            threads_per_rank=args.placement.threads.count,
            # Only Python capture needs the hook. Native capture records DDP's buckets without a
            # hook.
            hook=_native.native is None,
            compressor=args.hook or "",
            trial=args.trial or "",
            strategy=self.strategy,
            **{name: value for name, value in given.items() if value is not None},
        )

    def _steps(self) -> int | None:
        steps: int | None = self._args.steps
        if not self._args.trial or steps is not None or self._args.epochs is not None:
            return steps
        planned: int = satellites.tune().parse_trial(self._args.trial).steps
        return planned


class ScriptTarget:
    """The user's script or module, unchanged."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Keeps the arguments of ``commprof run``."""
        self._args = args
        self._command = ["-m", args.script] if args.module else [args.script]
        self._command += args.script_args
        self.name = Path(args.script).stem
        self.strategy = ""

    def check(self, world_sizes: list[int], rendezvous: Rendezvous) -> str:
        """Checks the options and that the script exists; returns the script's command."""
        given = [
            "--" + name.replace("_", "-")
            for name in WORKLOAD_OPTIONS
            if getattr(self._args, name) is not None
        ]
        if given:
            raise UsageError(
                f"{', '.join(given)}: for built-in workloads only; to pass options to "
                f"{self._args.script}, put them after its name"
            )
        if not self._args.module and not Path(self._args.script).is_file():
            raise UsageError(f"no script {self._args.script!r}; for a module, put -m before it")
        if self._args.module and not _module_exists(self._args.script):
            raise UsageError(f"no module {self._args.script!r} is found from {os.getcwd()}")
        for turn, size in enumerate(world_sizes):
            rendezvous.turn(turn).check(size)
        return f"python {shlex.join(self._command)}"

    def settings(self) -> dict[str, Any]:
        """Returns the script's command and options, for ``run.json``."""
        return {"script": self._command, **_asked(self._args)}

    def launch(self, world_size: int, directory: Path, rendezvous: Rendezvous) -> None:
        """Runs the script; restarts the ranks after a failure, up to --max-restarts times."""
        from commprof.launch.attempts import run_attempts

        launch_script = _elastic().launch_script
        environment, logs = self._environment(world_size, directory), directory / "logs"
        run_attempts(
            lambda attempt: launch_script(
                self._command, world_size, logs, environment, rendezvous, attempt
            ),
            directory,
            self._args.max_restarts,
        )

    def preview(self, world_size: int, directory: Path, local_ranks: int) -> Preview:
        """Describes the ranks' command and variables."""
        return Preview(
            f"python -u {shlex.join(self._command)}",
            self._environment(world_size, directory),
            ("The model and its memory are not known before the script runs.",),
        )

    def _environment(self, world_size: int, directory: Path) -> dict[str, str]:
        from commprof.capture import boot

        environment = boot.environment(directory)
        if self._args.hook is not None:
            environment[variables.HOOK] = self._args.hook
        if self._args.trial is not None:
            environment[variables.TRIAL] = self._args.trial
        placement = self._args.placement
        if cpu_sets := placement.pinning(world_size).text:
            environment[boot.CPUS_VARIABLE] = cpu_sets
        if placement.threads.source != "OMP_NUM_THREADS":
            environment["OMP_NUM_THREADS"] = str(placement.threads.count)
        return environment

    def exit_code(self, error: RankFailedError) -> int:
        """Returns the script's exit code; 128 + signal number if a signal ended the script."""
        code = error.process_exit_code
        return code if code >= 0 else 128 - code


def _module_exists(name: str) -> bool:
    """True if the module exists. For ``package.module``, only ``package`` is checked."""
    path = [os.getcwd(), *sys.path]
    return importlib.machinery.PathFinder.find_spec(name.partition(".")[0], path) is not None


def _elastic() -> ModuleType:
    """Imports commprof.launch.elastic. The import loads torch, which can take seconds."""
    with ends_at_once():
        from commprof.launch import elastic

    return elastic


def _training(job: Any, options: TrainingOptions) -> str:
    words = [f"{job.scaling} scaling", f"seed {job.seed}", f"backend {job.backend}"]
    words.append(f"hook {job.compressor}" if job.compressor else "no hook")
    for name, value in options.chosen().items():
        spoken = name.replace("_", " ")
        words.append(spoken if value is True else f"{spoken} {value}")
    return f"Training: {', '.join(words)}."


def _given(args: argparse.Namespace, name: str) -> Any:
    value = getattr(args, name)
    return WORKLOAD_DEFAULTS[name] if value is None else value


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    names = ("hook", "bucket_cap_mb", "fsdp", "trial")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.predicted is not None:
        given["predicted"] = {
            "run": str(args.check_prediction),
            **dataclasses.asdict(args.predicted),
        }
    return given


TRAINING_OPTIONS = tuple(field.name for field in dataclasses.fields(TrainingOptions))
"""Arguments of ``commprof run`` that are fields of ``TrainingOptions``; None if not given."""

WORKLOAD_DEFAULTS: dict[str, Any] = {
    "workload": "transformer",
    "strategy": "ddp",
    "scaling": "weak",
    "backend": "gloo",
    "seed": 0,
    "overhead_steps": 16,
}
"""Defaults of ``commprof run``'s options for built-in workloads, by argument name."""

WORKLOAD_OPTIONS = (
    "workload",
    "steps",
    "epochs",
    "batch_size",
    "scaling",
    "backend",
    "seed",
    "overhead_steps",
    "strategy",
    *TRAINING_OPTIONS,
)
"""Arguments of ``commprof run`` that only built-in workloads take; None if not given."""
