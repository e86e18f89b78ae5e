"""The JSON result."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from commprof.report.export.as_json import SCHEMA_VERSION, as_dict, render
from tests.support.builders.documents.full_document import full_run
from tests.support.builders.documents.report_schema import SCHEMA
from tests.support.builders.results import context, parts, run_result, world


def check(value: Any, schema: Any, where: str) -> None:
    """The same keys and types, all the way down."""
    if isinstance(schema, dict):
        assert value.keys() == schema.keys(), where
        for key in schema:
            check(value[key], schema[key], f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        assert value, where
        for item in value:
            check(item, schema[0], where)
    else:
        assert isinstance(value, schema), (where, value)


def test_the_schema() -> None:
    document = full_run()
    check(document, SCHEMA, "document")
    assert document["schema_version"] == SCHEMA_VERSION == 1


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
