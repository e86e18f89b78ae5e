"""The JSON Schema of a result names every field of it, and no other, with its type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from commprof.report.export import as_json
from tests.support.builders.documents.full_document import full_run

SCHEMA: dict[str, Any] = json.loads(as_json.SCHEMA_FILE.read_text())
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference leads to."""
    target = schema.get("$ref")
    if target is None:
        return schema
    return SCHEMA if target == "#" else SCHEMA["$defs"][target.removeprefix("#/$defs/")]


def complaints(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Where a value and its description differ; each way of an ``anyOf`` is tried."""
    schema = resolved(schema)
    if "anyOf" in schema:
        ways = [list(complaints(value, way, path)) for way in schema["anyOf"]]
        yield from [] if [] in ways else ways[0]
        return
    if "const" in schema:
        yield from [] if value == schema["const"] else [f"{path} is {value!r}"]
        return
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    allowed = tuple(one for name in names for one in _TYPES[name])
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        yield f"{path} is {value!r}, not {names}"
    elif isinstance(value, list):
        for item in value:
            yield from complaints(item, schema["items"], f"{path}[]")
    elif isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        yield from (f"{path}.{key} is not described" for key in value.keys() - known.keys())
        yield from (f"{path}.{key} is missing" for key in set(schema["required"]) - value.keys())
        for key in value.keys() & known.keys():
            yield from complaints(value[key], known[key], f"{path}.{key}")


def descriptions(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property at any depth."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for inner in schema.values():
            yield from descriptions(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from descriptions(inner)


def test_a_document_with_every_field_is_as_described() -> None:
    assert list(complaints(full_run(), SCHEMA)) == []
    required = set(SCHEMA["required"]) | {"verdict", "card"}
    assert required == full_run().keys()


def test_every_field_says_what_it_means() -> None:
    for name, one in descriptions(SCHEMA):
        assert one.get("description") or resolved(one).get("description"), name


def test_every_definition_is_used_and_none_is_missing() -> None:
    text = as_json.SCHEMA_FILE.read_text()
    for name in SCHEMA["$defs"]:
        assert name == "strategies" or f'"#/$defs/{name}"' in text, name
    assert SCHEMA["properties"]["schema_version"]["const"] == as_json.SCHEMA_VERSION


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"remarks": [1]}, ".remarks[] is 1, not ['string']"),
        ({"surplus": 1}, ".surplus is not described"),
        ({"schema_version": 2}, ".schema_version is 2"),
    ],
)
def test_a_document_that_differs_is_found(change: dict[str, Any], said: str) -> None:
    assert list(complaints(full_run() | change, SCHEMA)) == [said]
