from __future__ import annotations

import re
import textwrap

_CHANGE = re.compile(r"# (in place of|before|delete) (\S+?):(\d+)(?:-(\d+))?$")


def applied(fix: str, name: str, text: str) -> str:
    """Returns ``text``, the content of file ``name``, after the changes of a printed fix."""
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
    # Later lines are changed first, so that earlier lines keep their numbers. At the same line, the
    # replacement comes before the insertion.
    changes.sort(key=lambda change: (-change[1], change[0] == "before"))
    for verb, first, last, code in changes:
        indent = re.match(r"\s*", lines[first - 1])
        written = textwrap.indent("\n".join(code), indent.group() if indent else "").splitlines()
        end = first - 1 if verb == "before" else last
        lines[first - 1 : end] = written
    return "\n".join(lines) + "\n"
