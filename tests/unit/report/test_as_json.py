"""The JSON result, and its schema, which names every field and no other, with its type."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from commprof.report.export import as_json
from commprof.report.export.as_json import as_dict, render
from tests.support.builders.documents.full_document import full_run
from tests.support.builders.results import context, parts, run_result, world


def test_the_values() -> None:
    document = full_run()
    assert document["timestamp"] == "2026-11-01T12:00:00+00:00"
    assert document["context"] == context()
    assert [run["num_processes"] for run in document["runs"]] == [1, 2]
    metrics = document["runs"][1]["aggregated_metrics"]
    assert metrics["samples_per_sec"] == 200.0
    assert (metrics["speedup"], metrics["efficiency"]) == (2.0, 1.0)
    assert (metrics["measured_steps"], metrics["warmup_steps"]) == (10, 2)
    assert metrics["step_quartiles_ms"] == [98.0, 102.0]
    assert metrics["total_duration_sec"] == 1.0
    ranks = document["runs"][1]["rank_results"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert ranks[1]["avg_loss"] == 2.5
    assert ranks[1]["final_loss"] == 2.25
    assert ranks[1]["samples_per_sec"] == 100.0
    assert document["failures"] == [{"num_processes": 4, "reason": "rank 1 failed"}]
    assert document["remarks"] == ["a remark"]
    part = metrics["parts"]
    names = ("data_ms", "forward_ms", "backward_ms", "exposed_ms", "optimizer_ms", "other_ms")
    assert sum(part[name] for name in names) == part["step_ms"]
    assert part["wait_ms"] + part["wire_ms"] == part["exposed_ms"]


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
def test_figures_that_do_not_exist_are_null(missing: float) -> None:
    unknown = world(
        1,
        clock_error_us=missing,
        average_loss=missing,
        step_quartiles_ms=(missing, 1.0),
        overhead=None,
    )
    unknown = dataclasses.replace(unknown, parts=parts(wait_ms=missing))
    document = json.loads(render(run_result(unknown, overhead=None)))
    metrics = document["runs"][0]["aggregated_metrics"]
    assert metrics["avg_loss"] is metrics["clock_error_us"] is None
    assert metrics["step_quartiles_ms"] == [None, 1.0]
    assert metrics["parts"]["wait_ms"] is None
    assert metrics["overhead"] is metrics["late_rank"] is document["overhead"] is None


def test_an_empty_run() -> None:
    document = json.loads(render(run_result()))
    assert document["runs"] == document["failures"] == document["remarks"] == []


def test_the_text_is_the_document() -> None:
    result = run_result(world(1), remarks=("µ \x1b[2J \udc80",))
    text = render(result)
    assert text.isascii()
    assert text.endswith("}\n")
    assert json.loads(text) == as_dict(result)


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


def without_value(value: Any, path: str = "") -> Iterator[str]:
    """Where a document holds null or an empty list, whose contents no schema then looks at."""
    if value is None or value == []:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from without_value(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from without_value(inner, f"{path}[]")


def test_every_field_of_that_document_has_a_value() -> None:
    assert list(without_value(full_run())) == []


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
