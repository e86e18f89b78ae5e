"""Plain values as YAML, without a YAML library: block style, for files that a user reads."""

from __future__ import annotations

import json
import re

#: What YAML 1.1 takes for something else than a string.
_NO_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def yaml_text(value: object, indent: str = "") -> str:
    """Dictionaries, lists and scalars, one per line.

    Strings are written as JSON, which YAML reads alike, unless they are plain words.
    """
    lines = []
    if isinstance(value, dict):
        for key, item in value.items():
            lines.append(f"{indent}{key}:{_inline_or_below(item, indent + '  ')}")
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                body = yaml_text(item, indent + "  ")
                lines.append(f"{indent}- {body.removeprefix(indent + '  ').rstrip()}\n")
            else:
                lines.append(f"{indent}- {_scalar(item)}\n")
    return "".join(lines)


def _inline_or_below(item: object, indent: str) -> str:
    if isinstance(item, dict | list):
        return "\n" + yaml_text(item, indent) if item else f" {json.dumps(item)}\n"
    return f" {_scalar(item)}\n"


def _scalar(value: object) -> str:
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value)
    return str(value) if plain and str(value).lower() not in _NO_STRINGS else json.dumps(value)
