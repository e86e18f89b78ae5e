"""Applies a fix as a report prints it: "# in place of", "# before" and "# delete" FILE:LINE."""

from __future__ import annotations

import re
import textwrap

_CHANGE = re.compile(r"# (in place of|before|delete) (\S+?):(\d+)(?:-(\d+))?$")


def applied(fix: str, name: str, text: str) -> str:
    """Returns the text of a file with the changes that a fix says for it.

    Args:
        fix: the fix, as it is printed.
        name: name of the file, as the fix says it.
        text: what the file holds.

    Raises:
        ValueError: the fix has no change for this file.
    """
    lines = text.splitlines()
    changes: list[tuple[str, int, int, list[str]]] = []
    for line in fix.splitlines():
        if (change := _CHANGE.match(line)) is not None:
            verb, file, first, last = change.groups()
            if file != name:
                raise ValueError(f"the fix is for {file}, not for {name}")
            changes.append((verb, int(first), int(last or first), []))
        elif changes:
            changes[-1][3].append(line)
    if not changes:
        raise ValueError("the fix names no line")
    # From the end, so that numbers stay right; what stands before a line comes after its change.
    changes.sort(key=lambda change: (-change[1], change[0] == "before"))
    for verb, first, last, code in changes:
        indent = re.match(r"\s*", lines[first - 1])
        written = textwrap.indent("\n".join(code), indent.group() if indent else "").splitlines()
        end = first - 1 if verb == "before" else last
        lines[first - 1 : end] = written
    return "\n".join(lines) + "\n"
