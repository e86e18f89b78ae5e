"""Groups of related fields, for results with many fields.

A group is a dataclass, for code that needs only the fields of the group. Exports show these fields
as fields of the result.
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass
from typing import Any, Final


class FieldGroup:
    """Base class of all groups of fields."""


#: Types whose values ``plain_fields`` does not change.
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def plain_fields(result: Any) -> Any:
    """Converts like ``dataclasses.asdict``, but replaces each group by its fields."""
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
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None
