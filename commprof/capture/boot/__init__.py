"""Starts capture in a script that does not use commprof itself.

``sitecustomize.py`` in the same folder and ``commprof.wrap`` use this file. Every Python process of
a job runs this file, including processes that never train. So this file imports commprof's other
modules (except ``capture/nccl.py``) only when capture starts or the process ends, and does not
import torch before the script does.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from commprof.capture.settings import RankSettings

#: Copied from ``commprof.variables``, which this file does not import.
OUT_VARIABLE = "COMMPROF_OUT"
CPUS_VARIABLE = "COMMPROF_CPUS"
#: Copied from ``commprof.trace.run.endings``.
NOT_RECORDED_FILE = "not_recorded.txt"
_TARGET = "torch.distributed.distributed_c10d"
_HERE = os.path.dirname(os.path.abspath(__file__))
#: The folder that contains the package.
_ROOT = os.path.abspath(os.path.join(_HERE, "..", "..", ".."))


def environment(directory: Path) -> dict[str, str]:
    """Returns the environment variables that make a Python process and its children record."""
    given = os.environ.get("PYTHONPATH")
    # An empty entry, as in PYTHONPATH=:/lib, stays: it means the working directory.
    rest = given.split(os.pathsep) if given else []
    path = [_HERE, *(entry for entry in rest if entry != _HERE)]
    return {
        OUT_VARIABLE: str(directory.absolute()),
        "PYTHONPATH": os.pathsep.join(path),
        **_nccl().environment(os.environ),
    }


def _nccl() -> ModuleType:
    """Returns ``commprof.capture.nccl``; loads it by path if the package may not be importable."""
    if "commprof.capture" in sys.modules:
        return importlib.import_module("commprof.capture.nccl")
    path = os.path.join(os.path.dirname(_HERE), "nccl.py")
    spec = importlib.util.spec_from_file_location("_commprof_nccl", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pin() -> None:
    """Restricts this rank to the CPUs in ``COMMPROF_CPUS``, before libraries start threads.

    Removes the variable, so that child processes may choose their own CPUs.
    """
    parts = os.environ.pop(CPUS_VARIABLE, "").split("/")
    local_rank = os.environ.get("LOCAL_RANK", "")
    if not parts[0] or not local_rank.isdecimal():
        return
    cpus: set[int] = set()
    try:
        for run in parts[int(local_rank)].split(","):
            first, _, last = run.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except (ValueError, IndexError):
        print(
            f"commprof: {CPUS_VARIABLE}={'/'.join(parts)!r} names no CPUs for local rank "
            f"{local_rank} (a valid value for two ranks: 0-1/2,3); the rank is not pinned",
            file=sys.stderr,
        )
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        print(f"commprof: the rank is not pinned to CPUs {sorted(cpus)}: {error}", file=sys.stderr)


def arm(directory: str) -> None:
    """Patches torch so that the next process group of this process starts capture.

    The script makes the group with ``init_process_group``, or without it, as torchft does.
    """
    if _TARGET in sys.modules:
        _patch(sys.modules[_TARGET], directory)
        return
    sys.meta_path.insert(0, _Finder(lambda module: _patch(module, directory)))


def explain(directory: str, always: bool = False) -> None:
    """If this process records nothing, makes it print the reason when it ends.

    Of several ranks, only rank 0 prints. A process to which no launcher gave a rank may only start
    other ranks. Such a process prints only if ``always`` is True, or if it trained and no trace was
    written meanwhile.

    Args:
        directory: directory of the traces; the reason is also written to a file there.
        always: True if the user asked to record this process.
    """
    pid, begin_s = os.getpid(), time.time()

    def at_end() -> None:
        if os.getpid() == pid and not _Seen.capture and _speaks(directory, always, begin_s):
            _say_why(directory)

    atexit.register(at_end)


class _Seen:
    #: True once capture has started.
    capture = False
    #: Reason for which capture failed to start; empty if it did not fail.
    problem = ""


def _speaks(directory: str, always: bool, begin_s: float) -> bool:
    if not (always or "RANK" in os.environ or _trained()):
        return False
    _make_importable()
    try:
        import glob

        from commprof.launched import launched_as
    except ImportError:
        return False
    rank = launched_as(os.environ)
    if rank is not None and rank.world_size > 1 and rank.rank != 0:
        return False
    if always or "RANK" in os.environ:
        return True
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return False
    return not any(
        os.stat(path).st_mtime >= begin_s
        for pattern in ("rank_*.trace", "job_*/rank_*.trace")
        for path in glob.glob(os.path.join(glob.escape(directory), pattern))
    )


def _trained() -> bool:
    """True if this process made an optimizer. torch then replaces ``step`` in the class."""
    optim = sys.modules.get("torch.optim.optimizer")
    kinds = list(optim.Optimizer.__subclasses__()) if optim is not None else []
    while kinds:
        kind = kinds.pop()
        if getattr(vars(kind).get("step"), "hooked", False):
            return True
        kinds += kind.__subclasses__()
    return False


def _say_why(directory: str) -> None:
    error = getattr(sys, "last_type", None)
    ended = "" if error is None else f" (the process ended with {error.__name__})"
    if _Seen.problem:
        why = f": {_Seen.problem}"
    elif _TARGET not in sys.modules:
        why = f", because this process never imported torch.distributed{ended}"
    else:
        why = (
            ", because this process never completed init_process_group and made no other process "
            f"group{ended}; to record its steps without collectives, use commprof.profile() in the "
            "script"
        )
    try:
        print(f"commprof: nothing is recorded{why}", file=sys.stderr)
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, NOT_RECORDED_FILE), "w") as file:
            file.write(f"nothing is recorded{why}\n")
    except (OSError, ValueError):
        return  # stderr is closed, or the directory cannot be written to


class _Finder(importlib.abc.MetaPathFinder):
    """One-time import hook that passes the module ``_TARGET`` to ``then`` after its import."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find and find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._extend(spec.loader)
                return spec
        return None

    def _extend(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._then(module)

        loader.exec_module = exec_module


def _patch(c10d: ModuleType, directory: str) -> None:
    """Makes capture start as soon as the script has made its first process group.

    torchft makes a ``ProcessGroup`` and registers a backend, without ``init_process_group``.
    """
    import threading  # costs nothing here, because torch has loaded it

    _nccl().set_up()
    original = c10d.init_process_group
    initialising = threading.local()

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        initialising.depth = getattr(initialising, "depth", 0) + 1
        try:
            result = original(*args, **kwargs)
        finally:
            initialising.depth -= 1
        _start(directory)
        return result

    group = getattr(c10d, "ProcessGroup", None)
    register = getattr(group, "_register_backend", None)
    if register is not None:

        @functools.wraps(register)
        def _register_backend(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = register(self, *args, **kwargs)
            if not getattr(initialising, "depth", 0) and not _Seen.capture:
                _start(directory, self)
            return result

        group._register_backend = _register_backend  # type: ignore[union-attr]

    for module in (c10d, sys.modules.get("torch.distributed")):
        if module is not None and getattr(module, "init_process_group", None) is original:
            module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _refuse_nonsense(settings: RankSettings) -> None:
    """Checks the settings.

    Raises:
        UsageError: a setting is not valid.
    """
    from commprof import satellites

    if settings.hook:
        satellites.tune().parse_hook(settings.hook)
    if settings.fsdp:
        satellites.tune().sharding().parse_sharding(settings.fsdp)
    if settings.trial:
        from commprof.capture.settings import check_sync_fits_trial

        plan = satellites.tune().parse_trial(settings.trial)
        check_sync_fits_trial(settings.check_sync_every, plan.headroom)
    if settings.metrics:
        from commprof.monitor.settings import settings_of_variable

        settings_of_variable(settings.metrics)
    if settings.watchdog:
        from commprof import variables
        from commprof.monitor.watchdog.thresholds import parse_threshold

        parse_threshold(settings.watchdog, f"{variables.WATCHDOG}={settings.watchdog!r}")


def _make_importable() -> None:
    if "commprof" not in sys.modules and importlib.util.find_spec("commprof") is None:
        # Appended last, so that commprof's folder hides no module of the script.
        sys.path.append(_ROOT)


def _start(directory: str, group: Any = None) -> None:
    """Starts capture and all that the settings ask for.

    After an error, prints one line, and the script continues without what was not started yet.
    ``group`` is a process group that the script made without ``init_process_group``, else None.
    """
    from pathlib import Path

    _make_importable()
    try:
        from commprof import satellites
        from commprof.capture.ending import watch_exits
        from commprof.capture.job.direct_groups import note_group
        from commprof.capture.job.job_directory import agree
        from commprof.capture.profiler import active, profile
        from commprof.capture.settings import RankSettings, control_path
        from commprof.errors import CommprofError
        from commprof.monitor.watchdog.start import allow_tracer, watch_as_asked
    except ImportError as error:
        _not_recording(error)
        return
    if active() is not None:
        _Seen.capture = True
        return  # the script calls profile() itself, or made a second default group
    try:
        settings = RankSettings.from_environment()
        _refuse_nonsense(settings)
        job = agree(Path(directory))
        profiler = profile(job, find_steps=True).start()
        profiler.of_whole_job = True
        profiler.note_first_lines()
        _Seen.capture = True
        if group is not None:
            note_group(group)
        watch_exits()
        # If `commprof run` started this rank, `commprof run` prints where the traces are.
        profiler.says_end = control_path(job).parent == job
        allow_tracer(settings.tracer)
        watch_as_asked(job, settings.watchdog)
        if settings.metrics:
            from commprof.monitor.start import start_in_rank

            problem = start_in_rank(job, settings.metrics)
            if problem:
                print(f"commprof: {problem}", file=sys.stderr)
        if settings.bucket_cap_mb is not None:
            from commprof.capture.patches.every_model import cap_every_model

            cap_every_model(settings.bucket_cap_mb)
        if settings.fsdp:
            satellites.tune().set_every_model(settings.fsdp, profiler)
        if settings.hook:
            from commprof.capture.patches.every_model import attach_every_model

            attach_every_model(settings.hook)
        if settings.trial:
            satellites.tune().try_every_model(settings.trial, profiler)
        if settings.check_sync_every:
            from commprof.capture.sync_check import check_models

            check_models(profiler, settings.check_sync_every)
    except CommprofError as error:
        if _Seen.capture:
            print(f"commprof: recording, but not all that was asked for: {error}", file=sys.stderr)
        else:
            _not_recording(error)
    except Exception as error:
        # A defect of commprof must not end the script.
        what = f"{type(error).__name__}: {error}"
        if not _Seen.capture:
            _Seen.problem = what
        print(
            f"commprof: the recording is incomplete: {what} (a defect of commprof; please report "
            "it)",
            file=sys.stderr,
        )


def _not_recording(error: Exception) -> None:
    _Seen.problem = str(error)
    print(f"commprof: not recording: {error}", file=sys.stderr)
