"""Makes NCCL load commprof's profiler plugin, which passes all calls on to the user's plugin.

NCCL loads one plugin per process, together with the first communicator. In a process with torch,
the plugin is the native module, which records into capture's trace. Other programs get a plugin
that writes its own trace.

This file imports nothing of commprof, because ``boot`` runs it while torch is imported.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Iterator, Mapping

PLUGIN_VARIABLE = "NCCL_PROFILER_PLUGIN"
#: This name and the next two are copied from ``commprof.variables``.
LEVEL_VARIABLE = "COMMPROF_NCCL"
NATIVE_VARIABLE = "COMMPROF_NATIVE"
PASSED_ON_VARIABLE = "COMMPROF_NCCL_PLUGIN"
PACKAGE = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
#: The plugin for programs without torch.
PLUGIN = os.path.join(PACKAGE, "libnccl-profiler-commprof.so")
#: Maximum length of a plugin's path in bytes: NCCL cuts off longer paths.
_LONGEST_PATH = 254


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables that make programs without torch record NCCL's operations.

    Empty if this recording is turned off or not possible.

    Args:
        given: the environment to which the variables are to be added.
    """
    users, _ = plugin_of_user(given)
    off = given.get(LEVEL_VARIABLE) == "off" or not _has_gpu()
    if off or _forbids_all(users) or not _usable(PLUGIN):
        return {}
    return {PLUGIN_VARIABLE: PLUGIN, **({PASSED_ON_VARIABLE: users} if users else {})}


def set_up() -> str:
    """Makes NCCL record into this process's capture; call it before NCCL is used.

    Returns:
        A message if the user's settings forbid profiler plugins; else empty.
    """
    version = sys.modules.get("torch.version")
    may_use_nccl = getattr(version, "cuda", None) is not None and _has_gpu()
    users, chosen_in = plugin_of_user(os.environ)
    module = _module(str(getattr(version, "__version__", "")))
    off = os.environ.get(LEVEL_VARIABLE) == "off" or os.environ.get(NATIVE_VARIABLE) == "0"
    if off or not may_use_nccl or not _usable(module) or _forbids_all(users):
        # The variable may name commprof's plugin for programs without torch. In this process, that
        # plugin would write to the trace file of this rank.
        if _is_ours(os.environ.get(PLUGIN_VARIABLE, "")):
            del os.environ[PLUGIN_VARIABLE]
            if users:
                os.environ[PLUGIN_VARIABLE] = users
        said = _forbids_all(users) and may_use_nccl and not off
        forbidden = f"{PLUGIN_VARIABLE}={users} in {chosen_in} forbids profiler plugins"
        advice = "unset it to record them"
        return f"{forbidden}, so NCCL's own operations are not recorded; {advice}" if said else ""
    os.environ[PLUGIN_VARIABLE] = module
    if users:
        os.environ[PASSED_ON_VARIABLE] = users
    return ""


def plugin_of_user(given: Mapping[str, str]) -> tuple[str, str]:
    """Returns the user's plugin for NCCL, and the place that sets it; both empty if not set.

    Like NCCL, looks at ``NCCL_PROFILER_PLUGIN``, then into NCCL's configuration files, and then for
    a library ``libnccl-profiler.so``.
    """
    value = given.get(PLUGIN_VARIABLE, "")
    if value and not _is_ours(value):
        return value, "the environment"
    passed_on = given.get(PASSED_ON_VARIABLE, "")
    if value or passed_on:
        return passed_on, "the environment" if passed_on else ""
    for path in _configuration_files(given):
        value = _value_in(path)
        if value:
            return ("", "") if _is_ours(value) else (value, path)
    for folder in given.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        path = os.path.join(folder, "libnccl-profiler.so")
        if folder and os.path.exists(path):
            return path, folder
    return "", ""


def _forbids_all(users: str) -> bool:
    return users.lower() == "none"


def _is_ours(value: str) -> bool:
    name = os.path.basename(value)
    return value == "commprof" or name == os.path.basename(PLUGIN) or name.startswith("_torch")


def _configuration_files(given: Mapping[str, str]) -> Iterator[str]:
    home = given.get("HOME", "")
    first = given.get("NCCL_CONF_FILE", "") or (home and os.path.join(home, ".nccl.conf"))
    yield from (path for path in (first, "/etc/nccl.conf") if path)


def _value_in(path: str) -> str:
    """Returns the plugin that an NCCL configuration file sets; empty if it sets none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip().partition("=") for line in file]
    except OSError:
        return ""
    return next((value for name, _, value in lines if name == PLUGIN_VARIABLE), "")


def _module(torch_version: str) -> str:
    """Returns the native module's path for a torch version like 2.13.0+cpu; empty if none."""
    name = "_torch" + "".join(torch_version.split(".")[:2])
    paths = (os.path.join(PACKAGE, name + end) for end in importlib.machinery.EXTENSION_SUFFIXES)
    return next((path for path in paths if os.path.exists(path)), "")


def _usable(path: str) -> bool:
    return 0 < len(os.fsencode(path)) <= _LONGEST_PATH and os.path.exists(path)


def _has_gpu() -> bool:
    """True if there is an NVIDIA GPU; calling CUDA to find out would break programs that fork."""
    return any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "dxg"))
