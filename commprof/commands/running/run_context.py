"""Writes the files that describe a run: ``run.json``, and the options for repeating it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commprof._version import __version__
from commprof.interrupts import ends_at_once
from commprof.launch.cluster_files import yaml_text
from commprof.launch.pinning import RankPlacement
from commprof.launch.provenance import (
    command_line,
    environment,
    git_state,
    save_patch,
    versions,
)
from commprof.launch.run_files import keep_text
from commprof.launch.target import WORKLOAD_DEFAULTS
from commprof.report.sections.reproduce import repeating_command
from commprof.trace.run.run_directory import CONFIG_FILE

#: Options that are not saved. They are specific to one run or machine, or saved under another name.
_NOT_REPEATED = {
    *("all", "command", "config", "dry_run", "json", "node_rank", "nproc", "output", "placement"),
    *("predicted", "script", "script_args", "settings"),
}


def run_context(args: argparse.Namespace, world_sizes: Sequence[int]) -> dict[str, Any]:
    """Returns the settings and the machine of the run, for ``run.json``."""
    with ends_at_once():
        import torch

        from commprof import _native
        from commprof.capture.job.metadata import machine

    placement: RankPlacement = args.placement
    topology = args.placement.topology
    usable = {
        "usable_cpu_count": topology.usable_cpus,
        "usable_core_count": topology.usable_cores,
    }
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(command_line()),
        "commprof": __version__,
        "torch": torch.__version__,
        "capture": "native" if _native.native is not None else "python",
        "backend": args.backend or WORKLOAD_DEFAULTS["backend"],
        "world_sizes": list(world_sizes),
        "machine": {**machine(), **usable},
        "nodes": args.nnodes,
        "errors": {},
        **placement.settings(world_sizes),
        "reproduction": {
            "directory": str(Path.cwd()),
            "environment": environment(),
            "versions": versions(),
            "git": git_state(_user_directory(args)),
        },
    }


def save_changes(directory: Path, args: argparse.Namespace, context: dict[str, Any]) -> None:
    """Saves the user's uncommitted changes as a file, and adds the file's name to the context.

    Does nothing outside a git repository.
    """
    git = context["reproduction"]["git"]
    if "commit" in git:
        git["patch"] = save_patch(_user_directory(args), directory)


def save_config(directory: Path, args: argparse.Namespace, world_sizes: Sequence[int]) -> None:
    """Writes the options' final values to ``config.yaml``, with which the run can be repeated.

    A failure is printed on stderr and does not end the run.
    """
    text = (
        "# Options of this run. To repeat it, in the directory where it was started:\n"
        f"#   {repeating_command(directory / CONFIG_FILE, args.nnodes or 1)}\n"
    )
    text += yaml_text(effective_options(args, world_sizes))
    # The path in the comment may hold bytes that are not UTF-8.
    keep_text(directory / CONFIG_FILE, text.encode(errors="backslashreplace").decode())


def effective_options(args: argparse.Namespace, world_sizes: Sequence[int]) -> dict[str, Any]:
    """Returns the options' final values, with workload defaults, by configuration-file key."""
    defaults = {} if args.script else WORKLOAD_DEFAULTS
    given = {
        name: value
        for name, value in vars(args).items()
        if name not in _NOT_REPEATED and value is not None and value is not False
    }
    chosen = {**defaults, **given, "world_sizes": list(world_sizes)}
    chosen["threads_per_rank"] = args.placement.threads.count
    if args.script:
        chosen |= {"script": args.script, "script_args": list(args.script_args)}
    return {name.replace("_", "-"): _plain(value) for name, value in chosen.items()}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | list) else str(value)


def _user_directory(args: argparse.Namespace) -> Path:
    """Returns the script's directory; without a script file, the current directory."""
    return Path(args.script).resolve().parent if args.script and not args.module else Path.cwd()
