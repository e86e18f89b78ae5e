"""Runs a job at several world sizes. Each world size has its own directory."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from commprof.errors import CommprofError, RankFailedError, UsageError
from commprof.launch.rendezvous import Rendezvous
from commprof.launch.run_files import save_context
from commprof.launch.target import ScriptTarget, Target, WorkloadTarget
from commprof.text import counted, printable
from commprof.trace.run.run_directory import world_directory
from commprof.workloads.strategies import listed_strategies

#: Exit code of an interrupted run: the code that shells give for SIGINT.
INTERRUPTED = 130


def subjects_of(args: argparse.Namespace) -> list[Target]:
    """Returns the targets to run: the script, or one workload target for each strategy.

    Raises:
        UsageError: a strategy is named twice.
    """
    if args.script:
        return [ScriptTarget(args)]
    names = listed_strategies(args.strategy or "ddp")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(
            f"--strategy {args.strategy} names {', '.join(sorted(twice))} twice; keep one"
        )
    return [WorkloadTarget(args, name) for name in names]


def places_of(directory: Path, targets: Sequence[Target]) -> list[Path]:
    """Returns the directory of each target.

    A single target uses the run directory. If there are several targets, each has a subdirectory.
    """
    if len(targets) == 1:
        return [directory]
    return [directory / re.sub(r"[^A-Za-z0-9]+", "-", target.strategy) for target in targets]


def run_world_sizes(
    target: Target,
    rendezvous: Rendezvous,
    directory: Path,
    world_sizes: Sequence[int],
    context: dict[str, Any],
    beside: Callable[[Path], AbstractContextManager[None]],
) -> int:
    """Runs the target at each world size in order, and stops after the first failure.

    context: content of ``run.json``. beside: takes the directory of a world size, and returns a
    context manager that is active during the run of this world size.

    Returns the exit code of the last run.
    """
    if rendezvous.is_first:
        save_context(directory, context)
    for turn, size in enumerate(world_sizes):
        with beside(world_directory(directory, size)):
            code = _run_world(target, rendezvous.turn(turn), directory, size, context)
        if code:
            return code
    return 0


def _run_world(
    target: Target,
    rendezvous: Rendezvous,
    directory: Path,
    world_size: int,
    context: dict[str, Any],
) -> int:
    world = world_directory(directory, world_size)
    name = counted(world_size, "rank")
    code, ended_by = 0, None
    with _signals_as_exceptions():
        try:
            target.launch(world_size, world, rendezvous)
        except CommprofError as error:
            context["errors"][str(world_size)] = str(error)
            print(f"commprof: {name}: {printable(str(error))}", file=sys.stderr)
            code = error.exit_code
            if isinstance(error, RankFailedError):
                code = target.exit_code(error)
        except KeyboardInterrupt:
            context["errors"][str(world_size)] = "interrupted"
            print(f"commprof: {name}: interrupted", file=sys.stderr)
            code = INTERRUPTED
        except _Ended as ended:
            context["errors"][str(world_size)] = f"the launcher was ended by {ended.signal.name}"
            ended_by = ended.signal
        _salvage(world)
        if rendezvous.is_first:
            save_context(directory, context)
    if ended_by is not None:
        signal.signal(ended_by, signal.SIG_DFL)
        signal.raise_signal(ended_by)
    return code


def _salvage(world: Path) -> None:
    """Completes the traces of killed ranks. Call it only after all ranks have ended."""
    from commprof.trace.reader import salvage

    for trace in sorted([*world.glob("*.trace"), *world.glob("job_*/*.trace")]):
        try:
            salvage(trace)
        except (OSError, CommprofError) as error:
            print(f"commprof: {error}", file=sys.stderr)


class _Ended(BaseException):
    """Raised for SIGTERM and SIGHUP, so that traces are completed before this process ends."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise _Ended(number)

    # Under nohup, SIGHUP is ignored. It must stay ignored.
    caught = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
