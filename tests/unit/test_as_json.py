"""The JSON result."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from commprof.report.as_json import SCHEMA_VERSION, as_dict, render
from tests.support.full_document import full_run
from tests.support.results import PARTS, context, parts, run_result, world

QUANTILES = {
    "count": int,
    **dict.fromkeys(("p50_ms", "p95_ms", "p99_ms", "total_ms"), float),
}
SPREAD = {"median_ms": float, "p95_ms": float}
SCHEMA: dict[str, Any] = {
    "schema_version": int,
    "timestamp": str,
    "context": dict,
    "runs": [
        {
            "timestamp": str,
            "num_processes": int,
            "aggregated_metrics": {
                "avg_loss": float,
                "total_duration_sec": float,
                "samples_per_sec": float,
                "samples_source": str,
                "measured_steps": int,
                "warmup_steps": int,
                "merged_steps": int,
                "steps_end": str,
                "step_median_ms": float,
                "step_p95_ms": float,
                "step_quartiles_ms": [float],
                "speedup": float,
                "efficiency": float,
                "imbalance": float,
                "parts": {field.name: float for field in dataclasses.fields(PARTS)},
                "compression": [
                    {
                        "scheme": str,
                        "bucket": int,
                        "gradient_bytes": int,
                        "calls": int,
                        "queue_ms": float,
                        "encode_ms": float,
                        "exchange_ms": float,
                        "reduce_ms": float,
                        "decode_ms": float,
                        "done_ms": float,
                        "payload_bytes": float,
                        "wire_bytes": float,
                        "ratio": float,
                        "relative_error": float,
                        "cosine": float,
                        "residual_ratio": float,
                        "zeroed": float,
                        "saturated": float,
                        "non_finite": int,
                    }
                ],
                "collectives": [
                    {
                        "op": str,
                        "group": str,
                        "group_description": str,
                        "group_size": int,
                        "dtype": str,
                        "reduce_op": str,
                        "size_bytes": [int],
                        "calls": int,
                        "calls_per_step": float,
                        "total_bytes": int,
                        "phases": [{"phase": str, "calls": int}],
                        "callers": [{"caller": str, "calls": int}],
                        "duration": SPREAD,
                        "queue": SPREAD,
                        "wait": SPREAD,
                        "wire": SPREAD,
                        "exposed_ms": float,
                        "algbw_gb_per_s": float,
                        "busbw_gb_per_s": float,
                    }
                ],
                "late_rank": {
                    "rank": int,
                    "wait_ns": float,
                    "share": float,
                    "p_value": float,
                    "late_steps": int,
                    "measured_steps": int,
                    "cost_s": float,
                    "phase": str,
                    "phase_share": float,
                },
                "overhead": {
                    "on_over_off": {"value": float, "low": float, "high": float},
                    "control": {"value": float, "low": float, "high": float},
                    "steps_on": int,
                    "steps_off": int,
                    "told_apart": bool,
                },
                "records_per_step": float,
                "record_cost_ns": float,
                "dropped_records": int,
                "device_collectives": int,
                "device_timed": int,
                "device_clock_error_us": (float, type(None)),
                "clock_error_us": float,
                "missing_ranks": [int],
                "problems": [str],
                "step_losses": [float],
                "weights_differ": [int],
                "flights": [{"op": str, "in_flight_ms": float}],
                "cross_checks": [
                    {
                        "name": str,
                        "what": str,
                        "unit": str,
                        "ours": float,
                        "other": float,
                        "agrees": bool,
                        "note": str,
                        "difference": float,
                    }
                ],
            },
            "rank_results": [
                {
                    "rank": int,
                    "host": str,
                    "avg_loss": float,
                    "final_loss": float,
                    "samples": (int, float),
                    "duration_sec": float,
                    "samples_per_sec": float,
                    "parts": {field.name: float for field in dataclasses.fields(PARTS)},
                    "before_rss_bytes": float,
                    "peak_rss_bytes": float,
                    "device_peak_bytes": (float, type(None)),
                }
            ],
        }
    ],
    "overhead": dict,
    "failures": [{"num_processes": int, "reason": str}],
    "remarks": [str],
    "cost": {
        "price": {"per_hour": float, "unit": str},
        "rows": [
            {
                "num_processes": int,
                "billed": int,
                "s_per_1000_samples": float,
                "cost_per_1000_samples": {"value": float, "low": float, "high": float},
                "s_per_epoch": float,
                "cost_per_epoch": float,
                "cost_efficiency": float,
            }
        ],
        "cheapest": int,
        "fastest": int,
        "as_cheap": [int],
    },
    "summaries": [
        {
            "num_processes": int,
            "ranks": [int],
            "covered_s": float,
            "steps": int,
            **dict.fromkeys(
                (
                    *("step_median_ms", "step_p95_ms", "exposed_p95_ms", "data_ms", "forward_ms"),
                    *("backward_ms", "exposed_ms", "optimizer_ms", "other_ms", "step_ms"),
                    *("exposed_wait_ms", "exposed_wire_ms"),
                ),
                float,
            ),
            "operations": [
                {
                    **{"op": str, "group": str, "below_bytes": int, "count": int, "bytes": int},
                    **{"failed": int, "unfinished": int},
                    "duration": QUANTILES,
                    "wait": QUANTILES,
                    "until_last": QUANTILES,
                    "wire": QUANTILES,
                }
            ],
            **dict.fromkeys(("unsplit_steps", "arrivals_known", "arrivals_unknown"), int),
            **{"machines": int, "clocks_compared": bool, "hosts_heard": int},
            "unsent_datagrams": int,
            **dict.fromkeys(("arrival_clock_error_p95_us", "arrival_clock_error_us"), float),
            "last": [{"rank": int, "share": float, "cost_s": float}],
            "late_rank": {
                **{"rank": int, "wait_ms": float, "share": float, "p_value": float},
                **{"cost_s": float, "phase": str, "phase_share": float},
            },
            **{"moved": int, "dropped_records": int, "unmatched": int, "problems": [str]},
        }
    ],
    "loss_agreement": {
        "world_sizes": [int],
        **{"steps": int, "samples": int, "worst": float, "worst_world_size": int},
        **{"worst_step": int, "tolerance": float, "agrees": bool},
    },
}
"""A change here is a change for every reader: raise SCHEMA_VERSION if a field goes or changes."""


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
