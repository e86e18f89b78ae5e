"""Makes a child that was forked from a running Python behave as a new ``python WORDS``."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import importlib.machinery
import io
import multiprocessing.process
import os
import runpy
import sys
import types
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from commprof import variables

_OF_COMMPROF = (
    *("commprof.commands.run", "commprof.launch.worker", "commprof.capture.profiler"),
    *("commprof.commands.showing.rendered_report", "commprof.commands.showing.report_formats"),
    *("commprof.report.html.page", "commprof.report.export.as_json", "commprof.wrap"),
)
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_MS_REC, _MS_SLAVE, _MNT_DETACH = 0x4000, 0x80000, 2


def enter_host(netns: str) -> None:
    """Does what ``ip netns exec`` does: enters the namespace and mounts its ``/sys``."""
    libc = ctypes.CDLL(None, use_errno=True)

    def done(result: int, what: str) -> None:
        if result:
            raise OSError(ctypes.get_errno(), f"{what} for {netns}")

    with open(f"/var/run/netns/{netns}") as file:
        done(libc.setns(file.fileno(), _CLONE_NEWNET), "setns")
    done(libc.unshare(_CLONE_NEWNS), "unshare")
    done(libc.mount(b"", b"/", b"none", ctypes.c_ulong(_MS_SLAVE | _MS_REC), None), "mount")
    libc.umount2(b"/sys", _MNT_DETACH)
    done(libc.mount(netns.encode(), b"/sys", b"sysfs", ctypes.c_ulong(0), None), "mount /sys")


def import_commprof() -> None:
    for module in _OF_COMMPROF:
        importlib.import_module(module)


def forget_other_capture(environment: Mapping[str, str]) -> None:
    """Lets commprof be imported again if ``environment`` sets ``COMMPROF_NATIVE`` differently."""
    if environment.get(variables.NATIVE) != os.environ.get(variables.NATIVE):
        _forget_commprof()


def _forget_commprof() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "commprof"]:
        del sys.modules[name]


def take_over(environment: Mapping[str, str], directory: str) -> None:
    import torch

    forget_other_capture(environment)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    # multiprocessing looks in this directory for a main script with a relative path.
    multiprocessing.process.ORIGINAL_DIR = directory  # type: ignore[attr-defined]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))


def freeze() -> None:
    """Makes children skip the exit handlers and destructors that exist now, to save time."""
    gc.freeze()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    libc = ctypes.CDLL(None)
    # Exit functions run in reverse order: first fflush, then _exit, which skips older functions.
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


def keep_reducers() -> None:
    """Keeps the reducers of DDP models, because with torch 2.13 freeing a reducer may never end.

    The thread that frees a reducer holds the GIL while it waits for a gloo thread, which needs
    the GIL.
    """
    from torch.nn.parallel import DistributedDataParallel

    made, kept = DistributedDataParallel.__init__, []

    @functools.wraps(made)
    def init(model: DistributedDataParallel, *given: Any, **named: Any) -> None:
        made(model, *given, **named)
        kept.append(model.reducer)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def run(words: Sequence[str]) -> None:
    """Runs ``-m MODULE``, ``-c CODE`` or ``SCRIPT``.

    This must be the last call in ``__main__``: exceptions must reach the interpreter.
    """
    sys.orig_argv = [sys.executable, *words]
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    while words[0] in ("-u", "-B"):
        unbuffered |= words[0] == "-u"
        words = words[1:]
    _open_streams(unbuffered)
    kind = words[0] if words[0] in ("-m", "-c") else ""
    sys.argv = list(words[1:]) if kind else list(words)
    sys.path[0] = {"-m": os.getcwd(), "-c": ""}.get(
        kind, os.path.dirname(os.path.abspath(words[0]))
    )
    _add_python_path()
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if kind == "-m":
        sys.modules.pop(words[1], None)  # runpy would warn about an imported module
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif kind == "-c":
        sys.argv[0] = "-c"
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    else:
        main.__file__ = os.path.abspath(words[0])
        with open(words[0], "rb") as file:
            code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
        exec(code, main.__dict__)


def _open_streams(unbuffered: bool) -> None:
    """Opens new text streams, because the forked Python's streams may hold unwritten text."""
    raw = open(1, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(raw, write_through=unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]  # noqa: SIM115
        2, "w", 1, closefd=False, errors="backslashreplace"
    )


def _add_python_path() -> None:
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    new = [entry for entry in given if entry not in sys.path]
    sys.path[1:1] = new
    # importlib.util would find Debian's sitecustomize, which Python has loaded already.
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if new and spec is not None and spec.origin not in _DONE:
        sys.modules.pop("sitecustomize", None)
        _forget_commprof()  # sitecustomize may change what commprof imports
        with suppress(ImportError):
            __import__("sitecustomize")


_DONE = [getattr(sys.modules.get("sitecustomize"), "__file__", None)]
