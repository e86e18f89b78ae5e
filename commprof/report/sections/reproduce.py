"""Makes a line with the command that repeats a run, and the state of the run's code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.text import counted, printable

_SHORT = 10


def repeating_command(config: Path, nodes: int, directory: str = "") -> str:
    """Returns the command that repeats a run.

    For several machines, the command ends with ``--output NEW --node-rank N``. Users must replace
    NEW with a new directory, and N with each machine's index.

    Args:
        config: configuration file that the run wrote.
        nodes: number of machines of the run.
        directory: directory in which to type the command; empty for the current directory.
    """
    elsewhere = directory not in ("", os.getcwd())
    given = config.absolute() if elsewhere else config
    command = invocation.command("run", "--config", invocation.quoted(given), anywhere=elsewhere)
    return command if nodes == 1 else f"{command} --output NEW --node-rank N"


def reproduce_line(config: Path, context: Mapping[str, Any]) -> str:
    """Returns the command and the code's state; empty if ``commprof run`` did not start the run.

    Args:
        config: configuration file that the run wrote.
        context: contents of the run's ``run.json``.
    """
    found = context.get("reproduction")
    if not isinstance(found, dict):
        return ""
    directory, git = str(found.get("directory", "")), found.get("git")
    command = repeating_command(config, int(context.get("nodes", 1)), directory)
    where = f"in {directory}; " if directory else ""
    code = _code(git if isinstance(git, dict) else {})
    return printable(f"Run it again: {command} ({where}{code})")


def _code(git: Mapping[str, Any]) -> str:
    if "commit" not in git:
        return f"state of the code unknown: {git.get('unknown', 'not recorded')}"
    branch = f" of {git['branch']}" if git.get("branch") else ""
    text = f"code at git {str(git['commit'])[:_SHORT]}{branch}"
    files, lines = git.get("changed_files"), git.get("diff_lines")
    if files is None or lines is None:
        return f"{text}; changes not recorded"
    if not files:
        return f"{text}, unchanged"
    return f"{text} with {counted(files, 'changed file')}, {lines} lines"
