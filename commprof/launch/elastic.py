"""Launch of all ranks of a job on this machine, with torch's own elastic launcher."""

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

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, PContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from commprof.errors import CommprofError, RankFailedError
from commprof.invocation import quoted
from commprof.launch.backends import check_backend
from commprof.launch.job import Job, Plan
from commprof.launch.progress import ProgressLine
from commprof.launch.rendezvous import ALONE, Rendezvous
from commprof.launch.worker import run_rank
from commprof.text import counted
from commprof.trace.run.endings import stem_of

LAUNCHER_LOG = "launcher.log"
"""File in the log directory with the warnings of torch's launcher."""

_PRELOAD = ("commprof.launch.quiet_start", "torch", "commprof.launch.worker")
TRAINING_IMPORTS = ("torch._dynamo",)
"""Modules that are slow to import; the first DDP model and the first optimizer import them."""

_SHUTDOWN_TIMEOUT_S = 5  # a rank that ignores the launcher's signal is killed after this time
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are passed on to the ranks. A scheduler may send these signals as a warning; users
send them to change the recording mode."""
_LOGGERS = ("torch.distributed", "torch.multiprocessing")


def check(job: Job, rendezvous: Rendezvous = ALONE) -> Plan:
    """Checks a job before its launch, and returns the job's plan.

    Raises UsageError for an unusable workload, batch, backend or endpoint. Starts nothing.
    """
    rendezvous.check(job.world_size)
    check_backend(job.backend, job.world_size // rendezvous.nodes)
    return job.plan()


def launch(
    job: Job, log_dir: Path, rendezvous: Rendezvous = ALONE, cpu_sets: str = "", attempt: int = 0
) -> None:
    """Runs all ranks of the job, and returns when the ranks have ended.

    The ranks of all jobs are forked from one server, so that torch is imported only once. The
    server lives until `stop_fork_server`, the end of this process, or a failure. A signal ends the
    ranks and is then raised again. SIGUSR1 and SIGUSR2 are only passed on to the ranks, unless this
    process has a handler for them.

    Args:
        job: the job to run.
        log_dir: directory for the ranks' output and errors, and for the launcher's warnings.
        rendezvous: where the launchers of all machines meet.
        cpu_sets: CPUs of this machine's ranks, as in `Pinning.text`.
        attempt: index of the attempt; from 1 on, the names of the ranks' files contain it.

    Raises:
        UsageError: the job is not valid; nothing was started.
        RankFailedError: a rank failed; the error names the rank that failed first.
        CommprofError: the rendezvous failed, or the system refused an operation.
    """
    plan = check(job, rendezvous)
    job_path = job.directory / "job.json"
    job.save(job_path)
    steps = plan.steps + job.overhead_steps
    announced = f"{counted(plan.steps, 'step')} to train"
    if job.overhead_steps:
        announced += f", then {job.overhead_steps} to measure commprof's overhead"
    watched = ProgressLine(job.directory, job.world_size, steps, announced=announced)
    with watched if rendezvous.is_first else nullcontext():
        launch_function(
            run_rank,
            [str(job_path), cpu_sets],
            job.world_size,
            log_dir,
            threads_per_rank=job.threads_per_rank,
            imports=(*TRAINING_IMPORTS, *plan.workload.build_imports),
            rendezvous=rendezvous,
            attempt=attempt,
        )


def launch_function(
    function: Callable[..., None],
    arguments: Sequence[str],
    world_size: int,
    log_dir: Path,
    *,
    threads_per_rank: int = 1,
    imports: Iterable[str] = (),
    rendezvous: Rendezvous = ALONE,
    attempt: int = 0,
) -> None:
    """Calls a module's function in every rank, and returns when all ranks have returned.

    For `log_dir`, the fork server and exceptions, see `launch`. `imports` are modules that the fork
    server imports in addition to torch.
    """
    _make_log_dir(log_dir)
    config = _config(world_size, _FlatLogs(log_dir, attempt=attempt), rendezvous)
    multiprocessing.forkserver.set_forkserver_preload([*_PRELOAD, *imports])
    with _environment({"OMP_NUM_THREADS": str(threads_per_rank)}):
        _run_ranks(lambda: elastic_launch(config, function)(*arguments), log_dir, attempt)


def launch_script(
    command: list[str],
    world_size: int,
    log_dir: Path,
    environment: dict[str, str],
    rendezvous: Rendezvous = ALONE,
    attempt: int = 0,
) -> None:
    """Runs a Python script or module in all ranks, as torchrun would; returns when they have ended.

    The ranks print where this process prints.

    Args:
        command: arguments of `python`.
        world_size: number of ranks.
        log_dir: directory for the launcher's warnings, and for a failed rank's error.
        environment: additional environment variables of the ranks.
        rendezvous: as in `launch`.
        attempt: as in `launch`.

    Raises:
        RankFailedError: a rank failed; the error has the script's exit code.
        UsageError, CommprofError: as in `launch`.
    """
    rendezvous.check(world_size)
    _make_log_dir(log_dir)
    logs = _FlatLogs(log_dir, keep_output=False, attempt=attempt)
    config = _config(world_size, logs, rendezvous)
    with _environment(environment):
        _run_ranks(lambda: elastic_launch(config, sys.executable)("-u", *command), log_dir, attempt)


def _make_log_dir(log_dir: Path) -> None:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommprofError(f"cannot write to {quoted(log_dir)}: {error.strerror}") from None


def _run_ranks(run: Callable[[], object], log_dir: Path, attempt: int) -> None:
    """Runs torch's launcher, and turns its exceptions and signals into commprof's."""
    interrupted_by: signal.Signals | None = None
    try:
        # The launcher's signal handlers may raise anywhere in this process, even outside of run().
        with _log_file(log_dir), _signal_handlers(), _no_rank_left():
            run()
    except ChildFailedError as error:
        raise _rank_failed(error, log_dir, attempt) from None
    except SignalException as error:
        interrupted_by = error.sigval
    # torch's decorator that times functions raises this error if a signal interrupts the function.
    except UnboundLocalError as error:
        if not isinstance(error.__context__, SignalException):
            raise
        interrupted_by = error.__context__.sigval
    # A failed rendezvous raises RendezvousError on one machine, and DistError on several.
    except (RendezvousError, dist.DistError) as error:
        raise CommprofError(
            f"the rendezvous of the ranks failed: {error}; check --rdzv-endpoint, if given"
        ) from error
    except OSError as error:  # such as a full disk, or too many processes
        raise CommprofError(f"the launcher of the ranks failed: {error}") from error
    if interrupted_by is not None:
        signal.raise_signal(interrupted_by)


@contextmanager
def _no_rank_left() -> Iterator[None]:
    """If the block raises, kills the ranks that the block started, and the fork server.

    Ranks of other launches are killed too if they were forked from this server.
    """
    others = multiprocessing.active_children()
    try:
        yield
    except BaseException:
        _ignore_signals()
        _kill_ranks(others)
        kill_lost_ranks()
        _kill_fork_server()
        raise


def _ignore_signals() -> None:
    """Ignores SIGTERM, SIGINT and SIGHUP, so that these do not interrupt the cleanup.

    `_signal_handlers` restores the handlers later.
    """
    if threading.current_thread() is threading.main_thread():
        for number in {*_SIGNALS} - {signal.SIGQUIT}:
            signal.signal(number, signal.SIG_IGN)


def stop_fork_server() -> None:
    """Ends the process from which ranks are forked; the next launch starts a new one."""
    # multiprocessing has no public function for this; the server ends once its last client
    # closes the pipe
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _kill_fork_server() -> None:
    """Kills the fork server and all processes that it has forked.

    A signal may arrive after this process has asked the server for a rank. This process does not
    know the rank if the server forks it later. Such a rank keeps the server alive, so
    `stop_fork_server` alone would wait forever. The server is therefore suspended before its
    children are listed.
    """
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is None:
        return
    os.kill(server, signal.SIGSTOP)
    os.waitid(os.P_PID, server, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    for pid in _children(server):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    stop_fork_server()


def _kill_ranks(others: list[multiprocessing.process.BaseProcess]) -> None:
    """Kills the ranks that torch's launcher left running: all child processes except ``others``.

    The launcher leaves ranks running if a second signal interrupts the launcher's shutdown.
    """
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
    """Returns the shutdown timeout in s, as a keyword argument of ``LaunchConfig``.

    Before torch 2.12, ``LaunchConfig`` lacks this argument; this function then changes the default
    of torch's ``PContext.close`` instead, and returns {}.
    """
    if any(field.name == "shutdown_timeout" for field in dataclasses.fields(LaunchConfig)):
        return {"shutdown_timeout": _SHUTDOWN_TIMEOUT_S}
    PContext.close.__defaults__ = (None, _SHUTDOWN_TIMEOUT_S)  # death_sig, timeout
    return {}


class _FlatLogs(LogsSpecs):
    """Logs of all ranks in one directory; torch's own logs are nested four directories deep."""

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
            # Each attempt is a separate launch, so torch's own count stays 0.
            env["TORCHELASTIC_RESTART_COUNT"] = str(self._attempt)
        return destination


def _rank_failed(error: ChildFailedError, log_dir: Path, attempt: int) -> RankFailedError:
    rank, failure = error.get_first_failure()
    written = failure.error_file_data.get("message")
    # A rank that raised an exception wrote a dictionary. For a rank that ended without an
    # exception, torch makes up a string.
    reason = written["message"].partition("\n")[0] if isinstance(written, dict) else ""
    stem = stem_of(rank, attempt)
    logs = [log_dir / f"{stem}.err", log_dir / f"{stem}.error.json"]
    where = next((path for path in logs if path.exists()), log_dir)
    codes = {rank: failure.exitcode}  # the rank that failed first is listed first
    codes |= {number: failed.exitcode for number, failed in error.failures.items()}
    return RankFailedError(rank, failure.exitcode, reason, where, codes)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for the ranks and the fork server; restores them at the end.

    The fork server needs them, because it imports torch, which reads some variables only once.
    """
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
    """Redirects the log of torch's launcher from the terminal to a file in `log_dir`."""
    handler = logging.FileHandler(log_dir / LAUNCHER_LOG, mode="a", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    # On a full disk, logging would print a traceback for every record.
    handler.handleError = lambda record: None  # type: ignore[method-assign]
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
    """Passes SIGUSR1 and SIGUSR2 on, and restores the handlers that torch's launcher replaces.

    Without a handler, SIGUSR1 and SIGUSR2 would kill the launcher, but not its ranks.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, *_PASSED_ON)}
    for number in _PASSED_ON:
        if before[number] == signal.SIG_DFL:
            signal.signal(number, _pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


#: Variable that torch's launcher sets only for ranks.
_OF_RANKS = b"TORCHELASTIC_RUN_ID="


def kill_lost_ranks() -> None:
    """Kills every rank that is a child of this process, and the children of these ranks.

    Does nothing if the kernel does not list children (``CONFIG_PROC_CHILDREN``).
    """
    for pid in _ranks_of_scripts():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # torch gives each rank its own session


def _pass_on(number: int, _frame: object) -> None:
    """Signal handler that passes a signal on to all ranks."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    forked = [] if server is None else _children(server)
    for pid in [*_ranks_of_scripts(), *forked]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _ranks_of_scripts() -> list[int]:
    """Returns the IDs of this process's children that torch's launcher started as ranks."""
    ranks = []
    for pid in _children():
        with suppress(OSError):  # the process has ended
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(variable.startswith(_OF_RANKS) for variable in variables):
                ranks.append(pid)
    return ranks


def _children(process: int | str = "self") -> list[int]:
    """Returns the IDs of a process's children; empty if the kernel does not list them."""
    children: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*"):
        with suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return children
