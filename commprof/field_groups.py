"""Groups of fields: a result with many fields holds related fields as one group.

A group is a class of its own, for code that needs only these fields. Its fields are named as if
they were the result's own, and exports show them as such.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any


class FieldGroup:
    """Base of the dataclasses that are groups of a result's fields."""


def plain_fields(result: Any) -> Any:
    """Converts results like ``dataclasses.asdict``; a group is replaced by its fields."""
    if isinstance(result, dict):
        return {key: plain_fields(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return list(map(plain_fields, result))
    if not is_dataclass(result):
        return result
    named: dict[str, Any] = {}
    for field in fields(result):
        value = plain_fields(inner := getattr(result, field.name))
        named |= value if isinstance(inner, FieldGroup) else {field.name: value}
    return named
