"""Groups of fields: a result with many fields holds related fields as one group.

A group is a class of its own, for code that needs only these fields. Its fields are named as if
they were the result's own, and exports show them as such.
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass
from typing import Any, Final


class FieldGroup:
    """Base of the dataclasses that are groups of a result's fields."""


#: Types whose values ``plain_fields`` returns as they are.
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def plain_fields(result: Any) -> Any:
    """Converts as ``dataclasses.asdict`` does, but puts a group's fields in place of the group."""
    kind: Any = type(result)
    if kind in _SCALARS:
        return result
    names = _names(kind)
    if names is None:
        if isinstance(result, dict):
            return {key: plain_fields(value) for key, value in result.items()}
        return list(map(plain_fields, result)) if isinstance(result, list | tuple) else result
    named: dict[str, Any] = {}
    for name in names:
        inner = getattr(result, name)
        if isinstance(inner, FieldGroup):
            named |= plain_fields(inner)
        else:
            named[name] = inner if type(inner) in _SCALARS else plain_fields(inner)
    return named


@functools.cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """Returns the names of a dataclass's fields; None for another class."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None
