"""How to repeat a run, in a line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.text import counted, printable

#: Of a commit, as git shortens it.
_SHORT = 10


def repeating_command(config: Path, nodes: int, directory: str = "") -> str:
    """Command that repeats a run; on several machines with directory and number to fill in.

    Args:
        config: the file that the run wrote.
        nodes: machines of the run.
        directory: where it is to be typed, if that may not be here.
    """
    elsewhere = directory not in ("", os.getcwd())
    given = config.absolute() if elsewhere else config
    command = invocation.command("run", "--config", invocation.quoted(given), anywhere=elsewhere)
    return command if nodes == 1 else f"{command} --output NEW --node-rank N"


def reproduce_line(config: Path, context: Mapping[str, Any]) -> str:
    """The command and the state of the user's code; empty for what ``commprof run`` did not run.

    Args:
        config: the file that the run wrote.
        context: its ``run.json``.
    """
    found = context.get("reproduction")
    if not isinstance(found, dict):
        return ""
    command = repeating_command(config, int(context.get("nodes", 1)), str(found["directory"]))
    return printable(f"Run it again: {command} (in {found['directory']}; {_code(found['git'])})")


def _code(git: Mapping[str, Any]) -> str:
    if "commit" not in git:
        return f"state of the code unknown: {git.get('unknown', 'not recorded')}"
    branch = f" of {git['branch']}" if git["branch"] else ""
    text = f"code at git {git['commit'][:_SHORT]}{branch}"
    if not git["changed_files"]:
        return f"{text}, unchanged"
    files, lines = git["changed_files"], git["diff_lines"]
    return f"{text} with {counted(files, 'changed file')}, {lines} lines"
