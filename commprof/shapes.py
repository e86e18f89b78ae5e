"""The shapes of JSON documents: what passes here is used without looking again."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

#: An ``int`` that may be below 0.
Signed = Annotated[int, "signed"]
#: ``int`` is a whole number from 0 to 2**63 - 1, ``float`` any number or null, which is NaN;
#: ``X | None`` may be null, and missing from an object; ``Path`` is a string that becomes one;
#: ``dict`` and ``Any`` are whatever their reader checks by itself. A dataclass is an object with
#: its fields, where those with a default may be missing, and becomes one. Further keys may stand
#: beside those listed.
Shape: TypeAlias = "Any | dict[str, Shape]"

_TYPE_NAMES: Final = {
    int: "a whole number from 0 to 2**63 - 1",
    Signed: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}
#: Of a value that a message shows.
_MOST_SHOWN = 40


def plain(value: Any) -> Any:
    """Returns the value with null for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def checked(value: object, shape: Shape, where: str = "") -> Any:
    """The value as ``shape`` says; ``where`` is its dotted name.

    Raises:
        ValueError: names the key that is missing, or the wrong value and what is expected.
    """
    if isinstance(shape, dict):
        given: Mapping[str, Any] = _of_type(value, dict, where)
        return {**given, **dict(_members(given, shape, where))}
    if isinstance(shape, type) and dataclasses.is_dataclass(shape):
        given = _of_type(value, dict, where)
        fields = _fields(shape)
        wanted = {name: fields[name][0] for name in fields if name in given or fields[name][1]}
        null = dict.fromkeys(wanted)
        return shape(**null | dict(_members(given, wanted, where)))
    if shape is Any:
        return value
    if shape is float and value is None:
        return math.nan
    if shape is Path:
        return Path(checked(value, str, where))
    if _may_be_null(shape):
        return None if value is None else checked(value, get_args(shape)[0], where)
    plain = shape == Signed or not get_args(shape)
    return _of_type(value, shape, where) if plain else _items(value, shape, where)


def _may_be_null(shape: Shape) -> bool:
    return get_origin(shape) in (Union, types.UnionType)


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Shape, bool]]:
    """Shape of each field, and whether it has no default."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: (hints[field.name], field.default is field.default_factory)
        for field in dataclasses.fields(kind)
    }


def _members(value: Mapping[str, Any], shape: dict[str, Shape], where: str) -> Iterator[Any]:
    for key, inner in shape.items():
        name = f"{where}.{key}" if where else key
        if key in value:
            yield key, checked(value[key], inner, name)
        elif not _may_be_null(inner):
            raise ValueError(f"{name} is missing")


def _items(value: object, shape: Any, where: str) -> Any:
    """A list or tuple of items, or an object with any keys."""
    kind, inner = get_origin(shape), get_args(shape)
    if issubclass(kind, Mapping):
        items = _of_type(value, dict, where).items()
        return {key: checked(item, inner[1], f"{where}.{key}") for key, item in items}
    items = list(value) if isinstance(value, tuple) else _of_type(value, list, where)
    each = inner if kind is tuple and inner[-1] is not ... else inner[:1] * len(items)
    if len(items) != len(each):
        raise ValueError(f"{where} has {len(items)} items, not {len(each)}")
    pairs = enumerate(zip(items, each, strict=True))
    found = [checked(item, one, f"{where}[{n}]") for n, (item, one) in pairs]
    return found if kind is list else tuple(found)


def _of_type(value: object, wanted: Any, where: str) -> Any:
    if wanted is float:
        good = isinstance(value, int | float)
    else:
        good = isinstance(value, int if wanted == Signed else wanted)
    if isinstance(value, int):
        least = 0 if wanted is int else -(2**63)
        good = good and isinstance(value, bool) == (wanted is bool) and least <= value < 2**63
    if good:
        return float(value) if wanted is float else value  # type: ignore[arg-type]
    shown = repr(value)
    shown = shown if len(shown) <= _MOST_SHOWN else shown[: _MOST_SHOWN - 3] + "..."
    raise ValueError(f"{where or 'it'} is not {_TYPE_NAMES[wanted]}: {shown}")
