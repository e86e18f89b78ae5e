"""Loads the C++ modules that were built for the running torch, or stores why they are not loaded.

`native` is the profiler's own module. `tune` has compressors, shared memory and the
microbenchmark's loop. `tune` is loaded when it is first read, because a process that only records
does not need it.

torch's C++ ABI changes between minor versions. A module that was built for another minor version
loads without an error, and then calls the wrong virtual functions. So the name of each module
contains the minor version of its torch, as in `_torch213` or `_tune213`, and only modules for the
running torch are opened.

The import of this module also imports torch, unless COMMPROF_NATIVE=0 is set. To test whether a
module is loaded, use `native_error is None` or `tune_error is None`. The type checker takes
`native` for a module, so it does not check code under `native is None`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from commprof import variables

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["native", "native_error", "tune", "tune_error"]

_PACKAGE = Path(__file__).parent
_FALLBACK = "Using the Python capture (fewer facts, more overhead)."


def module_name(torch_version: str, stem: str = "_torch") -> str:
    """Returns a module's name for a torch version: `_torch213` for torch 2.13.0+cpu."""
    major, minor = torch_version.split(".")[:2]
    return f"{stem}{major}{minor}"


def built_for(file_names: Iterable[str]) -> list[str]:
    """Lists the torch versions, such as `2.13`, of the modules that this Python can load."""
    suffixes = "|".join(map(re.escape, importlib.machinery.EXTENSION_SUFFIXES))
    pattern = re.compile(rf"_torch(\d)(\d+)(?:{suffixes})")
    found = {(int(m[1]), int(m[2])) for name in file_names if (m := pattern.fullmatch(name))}
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def missing_message(
    torch_version: str, found: list[str], build_error: str | None, command: str
) -> str:
    """Returns a text on why there is no module for this torch, and how to build it.

    Args:
        torch_version: version of the running torch.
        found: torch versions that `built_for` found modules for.
        build_error: why the build at installation failed; None if it did not fail.
        command: the command that builds the module.
    """
    for_it = "To build the C++ module:"
    if build_error is not None:
        why = f"its build failed: {build_error}"
        for_it = "To build the C++ module, fix that error and run:"
    elif found:
        why = f"it was built for torch {', '.join(found)}"
    else:
        why = f"it was not built for Python {sys.version_info[0]}.{sys.version_info[1]}"
    return f"no C++ module for torch {torch_version}: {why}. {_FALLBACK} {for_it} {command}"


def install_command(package: Path, direct_url: str | None) -> str:
    """Returns the command that reinstalls commprof with a C++ module for the running torch.

    The source is the package's checkout, else the URL that pip recorded, else the package index.
    pip's build isolation stays on, because commprof's build backend finds the torch of this
    environment even in isolation.

    Args:
        package: the directory of the installed package.
        direct_url: text of pip's ``direct_url.json``; None if pip wrote no such file.
    """
    source = "commprof"
    if (package.parent / "CMakeLists.txt").exists():
        source = f"-e {shlex.quote(str(package.parent))}"
    elif direct_url is not None:
        origin = json.loads(direct_url)
        vcs = origin.get("vcs_info")
        url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
        source = shlex.quote(url)
    # pip's cache may hold a wheel that does not fit this torch.
    options = "--no-deps --force-reinstall --no-cache-dir"
    return f"{shlex.quote(sys.executable)} -m pip install {options} {source}"


def _build_error() -> str | None:
    file = _PACKAGE / "_build_error.txt"
    if not file.exists():
        return None
    return f"{file.read_text().splitlines()[0]} (full output: {file})"


def _direct_url() -> str | None:
    try:
        return importlib.metadata.distribution("commprof").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None


def _load() -> tuple[ModuleType | None, str | None]:
    if os.environ.get(variables.NATIVE) == "0":
        return None, f"COMMPROF_NATIVE=0 is set. {_FALLBACK}"
    import torch  # first, because the module needs torch's libraries in the process

    name = f"commprof.{module_name(torch.__version__)}"
    command = install_command(_PACKAGE, _direct_url())
    try:
        return importlib.import_module(name), None
    except ModuleNotFoundError:
        found = built_for(os.listdir(_PACKAGE))
        return None, missing_message(torch.__version__, found, _build_error(), command)
    except ImportError as error:
        return None, (
            f"the C++ module does not load under torch {torch.__version__}: {error}. "
            f"{_FALLBACK} To build it again: {command}"
        )


def _load_tune() -> tuple[ModuleType | None, str | None]:
    if native_error is not None:
        return None, native_error
    import torch

    name = module_name(torch.__version__, "_tune")
    command = install_command(_PACKAGE, _direct_url())
    try:
        return importlib.import_module(f"commprof.{name}"), None
    except ModuleNotFoundError:
        why = f"{_PACKAGE} has no {name}, which is built from csrc/tune"
    except ImportError as error:
        why = f"{name} does not load under torch {torch.__version__}: {error}"
    return None, f"no C++ module of compressors and shared memory: {why}. To build it: {command}"


native_error: str | None
"""Why the profiler's C++ module is not loaded, as printed after `commprof: `; None if it is."""

tune_error: str | None
"""Why `tune` is not loaded; None if it is loaded."""

if TYPE_CHECKING:
    from commprof import _C as native
    from commprof import _tune as tune
else:
    native, native_error = _load()

    def __getattr__(name: str) -> ModuleType | str | None:
        if name not in ("tune", "tune_error"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        loaded = _load_tune()
        globals().update(zip(("tune", "tune_error"), loaded, strict=True))
        return globals()[name]
