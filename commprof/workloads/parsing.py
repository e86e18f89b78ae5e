"""Names with options on a command line, `NAME[:key=value,key=value]`, against a dataclass."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from commprof.errors import UsageError


def allowed(given: str, names: Sequence[str]) -> str:
    """The end of a refusal: what could have been given, and what is nearest to it."""
    close = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f" (allowed: {', '.join(names)}){hint}"


def flag(name: str) -> str:
    """The option that a field of this name is given by, for messages."""
    return f"--{name.replace('_', '-')}"


def parse_options(name: str, text: str, options_type: type[Any]) -> Any:
    """The options that `text` gives, `key=value` by commas; the rest have their defaults.

    A field's metadata may hold `minimum` and `choices`; a `str` without choices takes any text
    without a comma. Raises UsageError for an unknown key, a wrong type or a value out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(options_type)}
    types = typing.get_type_hints(options_type)
    values: dict[str, object] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise UsageError(f"{name}: {item!r} is not key=value{allowed(key, list(fields))}")
        if key not in fields:
            raise UsageError(f"{name}: unknown option {key!r}{allowed(key, list(fields))}")
        if key in values:
            raise UsageError(f"{name}: option {key!r} is given twice; keep one of them")
        values[key] = _parse_value(f"{name}: {key}", value, types[key], fields[key].metadata)
    return options_type(**values)


def _parse_value(where: str, text: str, kind: Any, metadata: Mapping[str, Any]) -> object:
    if typing.get_origin(kind) is tuple:
        return tuple(_parse_value(where, part, float, metadata) for part in text.split("/"))
    if kind is str:
        choices = metadata.get("choices", (text,))
        if text not in choices:
            raise UsageError(f"{where}={text!r} is not known{allowed(text, choices)}")
        return text
    minimum = metadata.get("minimum", 0)
    noun = "a whole number" if kind is int else "a number"
    try:
        number = int(text) if kind is int else float(text)
    except ValueError:
        raise UsageError(f"{where}={text!r} is not {noun} (allowed: {minimum} or more)") from None
    if not minimum <= number < math.inf:
        raise UsageError(f"{where}={text} is out of range (allowed: {noun}, {minimum} or more)")
    return number
