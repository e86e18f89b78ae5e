"""Launching all ranks of a job on this machine, through torch's own elastic launcher."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, PContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from commprof import _native
from commprof.errors import CommprofError, RankFailedError, UsageError
from commprof.launch.job import Job, Plan
from commprof.launch.progress import ProgressLine
from commprof.launch.rendezvous import ALONE, Rendezvous
from commprof.launch.worker import run_rank
from commprof.trace.run.endings import stem_of

LAUNCHER_LOG = "launcher.log"
"""In the log directory: warnings of torch's launcher."""

_PRELOAD = ("commprof.launch.quiet_start", "torch", "torch._dynamo", "commprof.launch.worker")
_SHUTDOWN_TIMEOUT_S = 5  # then a rank that ignores the signal is killed
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_LOGGERS = ("torch.distributed", "torch.multiprocessing")


def check(job: Job, rendezvous: Rendezvous = ALONE) -> Plan:
    """Returns the job's plan, after refusing what would otherwise fail in its ranks.

    Raises UsageError for an unusable workload, batch, backend or endpoint; starts nothing.
    """
    rendezvous.check(job.world_size)
    check_backend(job.backend, job.world_size // rendezvous.nodes)
    return job.plan()


def launch(
    job: Job, log_dir: Path, rendezvous: Rendezvous = ALONE, cpu_sets: str = "", attempt: int = 0
) -> None:
    """Run all ranks of the job and return when they are done.

    log_dir: gets `rank_R.out`, `rank_R.err`, the launcher's warnings, and a failed rank's
    `rank_R.error.json`. rendezvous: where the launchers of all machines meet. cpu_sets: where the
    ranks of this machine run, as `Pinning.text` gives it. attempt: from 1 on, those of
    `run_attempts`, it stands in these files' names. The processes share
    one fork server, which stays for the next job (the cost of importing torch is paid once) until
    `stop_fork_server`, this process's end, or a failure.

    Raises UsageError before anything is started, RankFailedError for the first rank that failed,
    CommprofError if the ranks could not meet. A signal ends the ranks and is then raised again.
    """
    plan = check(job, rendezvous)
    job.directory.mkdir(parents=True, exist_ok=True)
    job_path = job.directory / "job.json"
    job.save(job_path)
    steps = plan.steps + job.overhead_steps
    watched = ProgressLine(job.directory, job.world_size, steps, piped=True)
    with watched if rendezvous.is_first else nullcontext():
        launch_function(
            run_rank,
            str(job_path),
            job.world_size,
            log_dir,
            threads_per_rank=job.threads_per_rank,
            imports=plan.workload.build_imports,
            more_arguments=(cpu_sets,),
            rendezvous=rendezvous,
            attempt=attempt,
        )


def launch_function(
    function: Callable[..., None],
    argument: str,
    world_size: int,
    log_dir: Path,
    *,
    threads_per_rank: int = 1,
    imports: Iterable[str] = (),
    more_arguments: Sequence[str] = (),
    rendezvous: Rendezvous = ALONE,
    attempt: int = 0,
) -> None:
    """Call a function of a module as every rank, and return when all have returned.

    log_dir: see `launch`, as for the fork server and what is raised. imports: what the fork server
    imports on top of torch. more_arguments: of the function.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    config = _config(world_size, _FlatLogs(log_dir, attempt=attempt), rendezvous)
    multiprocessing.forkserver.set_forkserver_preload([*_PRELOAD, *imports])
    with _environment({"OMP_NUM_THREADS": str(threads_per_rank)}):
        _run_ranks(
            lambda: elastic_launch(config, function)(argument, *more_arguments), log_dir, attempt
        )


def launch_script(
    command: list[str],
    world_size: int,
    log_dir: Path,
    environment: dict[str, str],
    rendezvous: Rendezvous = ALONE,
    attempt: int = 0,
) -> None:
    """Run a Python script or module as every rank, as torchrun would, and return when it is done.

    command: what follows `python`. log_dir: gets the launcher's warnings and a failed rank's
    `rank_R.error.json`; what the ranks print goes where this process prints. environment: for the
    ranks, on top of this process's own.

    Raises as `launch` does; a RankFailedError holds the exit code of the script.
    """
    rendezvous.check(world_size)
    log_dir.mkdir(parents=True, exist_ok=True)
    logs = _FlatLogs(log_dir, keep_output=False, attempt=attempt)
    config = _config(world_size, logs, rendezvous)
    with _environment(environment):
        _run_ranks(lambda: elastic_launch(config, sys.executable)("-u", *command), log_dir, attempt)


def _run_ranks(run: Callable[[], object], log_dir: Path, attempt: int) -> None:
    """Run torch's launcher; its exceptions and signal handling become ours."""
    interrupted_by: signal.Signals | None = None
    try:
        # Its signal handlers raise wherever this process is, also here behind it.
        with _log_file(log_dir), _signal_handlers(), _no_rank_left():
            run()
    except ChildFailedError as error:
        raise _rank_failed(error, log_dir, attempt) from None
    except SignalException as error:
        interrupted_by = error.sigval
    except RendezvousError as error:
        raise CommprofError(f"the ranks could not meet: {error}") from error
    if interrupted_by is not None:
        signal.raise_signal(interrupted_by)


@contextmanager
def _no_rank_left() -> Iterator[None]:
    """Whatever ends it but success also ends the ranks that were started in it."""
    others = multiprocessing.active_children()
    try:
        yield
    except BaseException:
        _kill_ranks(others)
        kill_lost_ranks()
        stop_fork_server()
        raise


def stop_fork_server() -> None:
    """End the process that the ranks are forked from; the next launch starts another."""
    # multiprocessing has no public way; the server ends once its last client closes the pipe
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _kill_ranks(others: list[multiprocessing.process.BaseProcess]) -> None:
    """End the ranks that a second signal kept torch's launcher from waiting for."""
    for process in multiprocessing.active_children():
        if process not in others:
            process.kill()
            process.join()


def _config(world_size: int, logs: LogsSpecs, rendezvous: Rendezvous) -> LaunchConfig:
    return LaunchConfig(
        **rendezvous.launch_config(world_size),
        max_restarts=0,
        start_method="forkserver",
        logs_specs=logs,
        **_shutdown_timeout(),
    )


def _shutdown_timeout() -> dict[str, int]:
    """Options of ``LaunchConfig``. Before torch 2.12 it has none, and its agent takes a default."""
    if any(field.name == "shutdown_timeout" for field in dataclasses.fields(LaunchConfig)):
        return {"shutdown_timeout": _SHUTDOWN_TIMEOUT_S}
    PContext.close.__defaults__ = (None, _SHUTDOWN_TIMEOUT_S)  # no signal of its own, and this
    return {}


class _FlatLogs(LogsSpecs):
    """One flat directory, `rank_R.out` and so on, where torch's own nests four deep."""

    def __init__(self, log_dir: Path, keep_output: bool = True, attempt: int = 0) -> None:
        super().__init__(str(log_dir))
        self._log_dir = log_dir
        self._keep_output = keep_output
        self._attempt = attempt

    @property
    def root_log_dir(self) -> str:
        return str(self._log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        destination = LogsDest()
        for local_rank, env in envs.items():
            stem = f"{self._log_dir}/{stem_of(int(env['RANK']), self._attempt)}"
            destination.stdouts[local_rank] = f"{stem}.out" if self._keep_output else ""
            destination.stderrs[local_rank] = f"{stem}.err" if self._keep_output else ""
            destination.error_files[local_rank] = f"{stem}.error.json"
            Path(f"{stem}.error.json").unlink(missing_ok=True)
            env["TORCHELASTIC_ERROR_FILE"] = f"{stem}.error.json"
            # Each attempt is a launch of its own, of which torch counts no restarts.
            env["TORCHELASTIC_RESTART_COUNT"] = str(self._attempt)
        return destination


def _rank_failed(error: ChildFailedError, log_dir: Path, attempt: int) -> RankFailedError:
    rank, failure = error.get_first_failure()
    written = failure.error_file_data.get("message")
    # A rank that raised wrote a dictionary; for one that just ended, torch makes up a string.
    reason = written["message"].partition("\n")[0] if isinstance(written, dict) else ""
    stem = stem_of(rank, attempt)
    kept = [log_dir / f"{stem}.err", log_dir / f"{stem}.error.json"]
    where = next((path for path in kept if path.exists()), log_dir)
    codes = {number: failed.exitcode for number, failed in error.failures.items()}
    return RankFailedError(rank, failure.exitcode, reason, where, codes)


def check_backend(backend: str, local_ranks: int) -> None:
    """Raise UsageError for a backend that this torch or machine has not for so many ranks of it."""
    available = [name for name in ("gloo", "nccl", "mpi", "ucc") if dist.is_backend_available(name)]
    if "nccl" in available and not torch.cuda.is_available():
        available.remove("nccl")
    if _native.native is not None:
        available.append("commprof")
    if backend not in available:
        raise UsageError(
            f"backend {backend!r} cannot be used here: torch {torch.__version__} with "
            f"{torch.cuda.device_count()} CUDA devices has {', '.join(available)}"
        )
    if backend == "nccl" and local_ranks > torch.cuda.device_count():
        raise UsageError(
            f"backend 'nccl' needs a GPU of its own for each of {local_ranks} ranks, and here "
            f"are {torch.cuda.device_count()}; take fewer ranks, or backend 'gloo'"
        )


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables for the ranks, and for the fork server, whose torch reads some of them once."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _log_file(log_dir: Path) -> Iterator[None]:
    """What torch's launcher logs goes into a file of ours instead of onto the terminal."""
    handler = logging.FileHandler(log_dir / LAUNCHER_LOG, mode="a", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk
    handler.setLevel(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
        handler.close()


@contextmanager
def _signal_handlers() -> Iterator[None]:
    """Put back the handlers that torch's launcher replaces for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


#: Torch's launcher sets it for ranks; nothing else that this process starts has it.
_OF_RANKS = b"TORCHELASTIC_RUN_ID="


def kill_lost_ranks() -> None:
    """End every rank that is a child of this process, with what it started itself.

    For when torch's launcher has given up: those that it knows of are gone by then. Does nothing
    where the kernel does not list children (``CONFIG_PROC_CHILDREN``).
    """
    for pid in _children():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it is gone
        if any(variable.startswith(_OF_RANKS) for variable in variables):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # torch gives each a session of its own


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found
