"""What ``commprof run`` runs at each world size: a built-in workload, or the user's script."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from pathlib import Path
from typing import Any, Protocol

from commprof.errors import RankFailedError, UsageError
from commprof.launch.meeting import Meeting
from commprof.workloads.options import TrainingOptions


class Subject(Protocol):
    """Checked before anything starts, then launched once per world size."""

    #: For the run directory's name.
    name: str
    #: How ranks share the model, as on the command line; empty where a script decides.
    strategy: str

    def check(self, world_sizes: list[int], meeting: Meeting) -> str:
        """Describes what will run, for the report's heading.

        Raises:
            UsageError: it cannot run like this.
        """

    def settings(self) -> dict[str, Any]:
        """What was asked for, for ``run.json``."""

    def launch(self, world_size: int, directory: Path, meeting: Meeting) -> None:
        """Runs it; ranks leave their traces in ``directory``.

        Raises:
            CommprofError: a rank failed, or none could be started.
        """

    def exit_code(self, error: RankFailedError) -> int:
        """Exit code of the command when a rank failed."""


class WorkloadSubject:
    """A built-in workload under the built-in training loop, by one strategy."""

    def __init__(self, args: argparse.Namespace, strategy: str = "ddp") -> None:
        """Takes the arguments of ``commprof run``."""
        self._args = args
        self._workload = args.workload or "transformer"
        self._settings: dict[str, Any] = {}
        self.strategy = strategy
        self.name = self._workload.partition(":")[0]

    def check(self, world_sizes: list[int], meeting: Meeting) -> str:
        """See ``Subject``."""
        from commprof.launch.elastic import check

        plans = [check(self._job(size, Path("unused")), meeting) for size in world_sizes]
        workload = plans[0].workload
        self._settings = {
            "training": plans[0].options.chosen(),
            "split_dependence": workload.split_dependence,
        }
        return workload.describe()

    def settings(self) -> dict[str, Any]:
        """See ``Subject``."""
        return {
            "workload": self._workload,
            "strategy": self.strategy,
            "scaling": self._args.scaling or "weak",
            "seed": self._args.seed or 0,
            **self._settings,
            **_hook(self._args),
            **_trial(self._args),
        }

    def launch(self, world_size: int, directory: Path, meeting: Meeting) -> None:
        """See ``Subject``."""
        from commprof.launch.attempts import run_attempts
        from commprof.launch.elastic import launch

        job, logs = self._job(world_size, directory), directory / "logs"
        restarts = self._args.max_restarts
        run_attempts(lambda attempt: launch(job, logs, meeting, attempt), directory, restarts)

    def exit_code(self, error: RankFailedError) -> int:
        """See ``Subject``."""
        return error.exit_code

    def _job(self, world_size: int, directory: Path) -> Any:
        from commprof import _native
        from commprof.launch.job import Job

        args = self._args
        overhead_steps = 8 if args.overhead_steps is None else args.overhead_steps
        given = {name: getattr(args, name) for name in TRAINING_OPTIONS}
        return Job(
            workload=self._workload,
            world_size=world_size,
            directory=directory,
            steps=self._steps(),
            epochs=args.epochs,
            batch_size=args.batch_size,
            scaling=args.scaling or "weak",
            backend=args.backend or "gloo",
            overhead_steps=0 if args.trial else overhead_steps,
            seed=args.seed or 0,
            threads_per_rank=args.threads,
            # The observer sees DDP's buckets without a hook, which would cost a pass over the
            # gradients; Python capture has nothing else.
            hook=_native.native is None,
            compressor=args.hook or "",
            trial=args.trial or "",
            strategy=self.strategy,
            **{name: value for name, value in given.items() if value is not None},
        )

    def _steps(self) -> int | None:
        """A trial trains as long as it takes, unless it is told otherwise."""
        steps: int | None = self._args.steps
        if not self._args.trial or steps is not None or self._args.epochs is not None:
            return steps
        from commprof.trials.plan import parse_trial

        return parse_trial(self._args.trial).steps


class ScriptSubject:
    """The user's script or module, unchanged."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Takes the arguments of ``commprof run``."""
        self._args = args
        self._command = ["-m", args.script] if args.module else [args.script]
        self._command += args.script_args
        self.name = Path(args.script).stem
        self.strategy = ""

    def check(self, world_sizes: list[int], meeting: Meeting) -> str:
        """See ``Subject``."""
        given = [
            "--" + name.replace("_", "-")
            for name in _WORKLOAD_OPTIONS
            if getattr(self._args, name) is not None
        ]
        if given:
            raise UsageError(
                f"{', '.join(given)}: for built-in workloads only; {self._args.script} decides "
                "that itself, so give it what it takes behind its name"
            )
        if not self._args.module and not Path(self._args.script).is_file():
            raise UsageError(f"no script {self._args.script!r}; for a module, put -m before it")
        return f"python {shlex.join(self._command)}"

    def settings(self) -> dict[str, Any]:
        """See ``Subject``."""
        return {"script": self._command, **_hook(self._args), **_trial(self._args)}

    def launch(self, world_size: int, directory: Path, meeting: Meeting) -> None:
        """See ``Subject``."""
        from commprof import boot
        from commprof.launch.attempts import run_attempts
        from commprof.launch.elastic import launch_script

        environment = boot.environment(directory)
        if self._args.hook is not None:
            environment[boot.HOOK_VARIABLE] = self._args.hook
        if self._args.trial is not None:
            environment[boot.TRIAL_VARIABLE] = self._args.trial
        environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(self._args.threads))
        logs = directory / "logs"
        run_attempts(
            lambda attempt: launch_script(
                self._command, world_size, logs, environment, meeting, attempt
            ),
            directory,
            self._args.max_restarts,
        )

    def exit_code(self, error: RankFailedError) -> int:
        """The script's own; 128 + number if a signal ended it, as a shell has it."""
        code = error.process_exit_code
        return code if code >= 0 else 128 - code


def _hook(args: argparse.Namespace) -> dict[str, Any]:
    """In ``run.json`` only where one was asked for."""
    return {} if args.hook is None else {"hook": args.hook}


def _trial(args: argparse.Namespace) -> dict[str, Any]:
    """The same."""
    return {} if args.trial is None else {"trial": args.trial}


TRAINING_OPTIONS = tuple(field.name for field in dataclasses.fields(TrainingOptions))
"""What ``commprof run`` takes under the names of ``TrainingOptions``; None where not given."""

_WORKLOAD_OPTIONS = (
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
