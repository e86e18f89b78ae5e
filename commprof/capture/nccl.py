"""Makes NCCL load commprof's profiler plugin, if the user has set no other one.

NCCL loads one plugin per process, when the process makes its first communicator. A process with
torch gets capture's own module, which records into the trace that capture has open; other programs
get the plugin that writes traces of its own.

It imports nothing of commprof: ``boot`` runs it while torch is imported.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Iterator, Mapping

PLUGIN_VARIABLE = "NCCL_PROFILER_PLUGIN"
#: Copied from ``commprof.variables``.
LEVEL_VARIABLE = "COMMPROF_NCCL"
NATIVE_VARIABLE = "COMMPROF_NATIVE"
#: The folder of the package.
PACKAGE = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
#: For programs without torch.
PLUGIN = os.path.join(PACKAGE, "libnccl-profiler-commprof.so")
#: Longer paths are cut off by NCCL.
_LONGEST_PATH = 254


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable with which programs without torch record; empty if they shall not.

    Args:
        given: the environment to which it is to be added.
    """
    off = given.get(LEVEL_VARIABLE) == "off" or not _has_gpu()
    if off or plugin_of_user(given) or not _usable(PLUGIN):
        return {}
    return {PLUGIN_VARIABLE: PLUGIN}


def set_up() -> str:
    """Makes NCCL record into this process's capture. Call it before the first communicator.

    Returns:
        Why NCCL's own operations are not recorded; empty if they are, or if this process cannot
        use NCCL.
    """
    version = sys.modules.get("torch.version")
    may_use_nccl = getattr(version, "cuda", None) is not None and _has_gpu()
    chosen = plugin_of_user(os.environ)
    if chosen:
        left = f"{chosen} is NCCL's profiler plugin and is left alone"
        return f"{left}, so NCCL's own operations are not recorded" if may_use_nccl else ""
    module = _module(str(getattr(version, "__version__", "")))
    off = os.environ.get(LEVEL_VARIABLE) == "off" or os.environ.get(NATIVE_VARIABLE) == "0"
    if off or not may_use_nccl or not _usable(module):
        os.environ.pop(PLUGIN_VARIABLE, None)  # else it would claim the trace of this rank
        return ""
    os.environ[PLUGIN_VARIABLE] = module
    return ""


def plugin_of_user(given: Mapping[str, str]) -> str:
    """Returns where the user has chosen a plugin for NCCL, and which; empty if nowhere.

    NCCL looks at the variable, then into its configuration files, and without a choice it loads
    ``libnccl-profiler.so`` if there is one.
    """
    value = given.get(PLUGIN_VARIABLE, "")
    if value:
        return "" if _is_ours(value) else f"{PLUGIN_VARIABLE}={value}"
    for path in _configuration_files(given):
        value = _value_in(path)
        if value:
            return "" if _is_ours(value) else f"{value} of {path}"
    for folder in given.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        path = os.path.join(folder, "libnccl-profiler.so")
        if folder and os.path.exists(path):
            return path
    return ""


def _is_ours(value: str) -> bool:
    name = os.path.basename(value)
    return value == "commprof" or name == os.path.basename(PLUGIN) or name.startswith("_torch")


def _configuration_files(given: Mapping[str, str]) -> Iterator[str]:
    home = given.get("HOME", "")
    first = given.get("NCCL_CONF_FILE", "") or (home and os.path.join(home, ".nccl.conf"))
    yield from (path for path in (first, "/etc/nccl.conf") if path)


def _value_in(path: str) -> str:
    """Returns the plugin that a file of lines ``NAME=VALUE`` chooses; empty if none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip().partition("=") for line in file]
    except OSError:
        return ""
    return next((value for name, _, value in lines if name == PLUGIN_VARIABLE), "")


def _module(torch_version: str) -> str:
    """Returns the path of capture's module for a version such as 2.13.0+cpu; empty if none."""
    name = "_torch" + "".join(torch_version.split(".")[:2])
    paths = (os.path.join(PACKAGE, name + end) for end in importlib.machinery.EXTENSION_SUFFIXES)
    return next((path for path in paths if os.path.exists(path)), "")


def _usable(path: str) -> bool:
    return 0 < len(os.fsencode(path)) <= _LONGEST_PATH and os.path.exists(path)


def _has_gpu() -> bool:
    """True if this process sees a GPU of NVIDIA's; asking CUDA would break programs that fork."""
    return any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "dxg"))
