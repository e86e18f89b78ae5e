"""Every field of ``commprof report --format json``, and its type."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.builders.results import PARTS

CHECK = {
    **{"name": str, "what": str, "unit": str, "ours": float, "other": float, "agrees": bool},
    **{"note": str, "difference": float},
}
QUANTILES = {
    "count": int,
    **dict.fromkeys(("p50_ms", "p95_ms", "p99_ms", "total_ms"), float),
}
SPREAD = {"median_ms": float, "p95_ms": float}
COLLECTIVES = [
    {
        "op": str,
        "group": str,
        "group_description": str,
        "group_size": int,
        "group_ranks": [int],
        "dtype": str,
        "reduce_op": str,
        "size_bytes": [int],
        "calls": int,
        "failed": int,
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
]
SCHEMA: dict[str, Any] = {
    "schema_version": int,
    "timestamp": str,
    "context": dict,
    "verdict": {
        "num_processes": int,
        "headline": str,
        "sentences": [str],
        "bindings": [
            {
                "num_processes": int,
                "part": str,
                "largest": [{"part": str, "share": float}],
                "communication": [{"part": str, "share": float}],
            }
        ],
        "advice": str,
        "command": str,
    },
    "card": {
        "description": str,
        "world_size": int,
        "steps": int,
        "step_ms": float,
        "verdict": str,
        "parts": [{"name": str, "ms": float, "share": float}],
        **dict.fromkeys(("exposed_ms", "exposed_share", "wait_ms", "wire_ms"), float),
        "hidden_ms": float,
        "best_step_ms": float,
        "late": {
            **{"rank": int, "where": str, "wait_ms": float, "share": float, "late_steps": int},
            **{"measured_steps": int, "p_value": float},
        },
        "nobody_late": bool,
        "small_calls": {"calls_per_step": float, "mean_bytes": float, "exposed_share": float},
        "link": {
            **{"interfaces": [str], "step_bytes": float, "in_flight_gbit_per_s": float},
            "idle": [str],
        },
        "scaling": [
            {"world_size": int, **dict.fromkeys(("samples_per_s", "speedup", "efficiency"), float)}
        ],
        "caveats": [str],
        "advice": str,
        "command": str,
        "all_command": str,
    },
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
                "collectives": COLLECTIVES,
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
                    "slower_ms": float,
                },
                "wait_costs": [{"rank": int, "cause": str, "wait_ms": float, "share": float}],
                "without_core": {
                    "rank": int,
                    "phase": str,
                    "longer_ms": float,
                    "no_core_ms": float,
                },
                "gains": {
                    "step_ms": float,
                    "steps": int,
                    "gains": [
                        {
                            "change": str,
                            "rank": int,
                            "phase": str,
                            "group": str,
                            "step_ms": float,
                            "saved": {"value": float, "low": float, "high": float},
                        }
                    ],
                    "load_balance": float,
                    "serialisation": float,
                    "transfer": float,
                },
                "sharding": {
                    "groups": int,
                    "parts": [
                        {
                            "part": str,
                            "calls": float,
                            "exposed_ms": float,
                            "group": int,
                            "group_ms": float,
                            "last_ms": float,
                        }
                    ],
                },
                "stalled_steps": [{"step": int, "ms": float}],
                "overhead": {
                    "on_over_off": {"value": float, "low": float, "high": float},
                    "control": {"value": float, "low": float, "high": float},
                    "cpu": dict,
                    "steps_on": int,
                    "steps_off": int,
                    "measurable": bool,
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
                "host_links": {
                    "hosts": int,
                    "interfaces": [str],
                    "step_bytes": float,
                    "in_flight_gbit_per_s": float,
                    "step_gbit_per_s": float,
                    "recorded_bytes": float,
                    "header_share": float,
                    "idle": [str],
                    "counted_bytes": float,
                    "note": str,
                    "difference": float,
                    "agrees": bool,
                },
                "cross_checks": [CHECK],
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
                    "kernels": {
                        **dict.fromkeys(("communication_ms", "compute_ms", "busy_ms"), float),
                        **dict.fromkeys(("idle_ms", "wait_ms", "wire_ms", "unsplit_ms"), float),
                    },
                    "device": {
                        "samples": int,
                        "utilisation_percent": float,
                        "sm_clock_mhz": float,
                        "least_sm_clock_mhz": float,
                        "power_w": float,
                        "memory_used_bytes": float,
                        "limited": {"power": float, "temperature": float, "hardware": float},
                    },
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
    "stepless": [{"num_processes": int, "collectives": COLLECTIVES}],
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
                    **{"algbw_gb_per_s": float, "busbw_gb_per_s": float},
                }
            ],
            "steps_end": str,
            "cross_checks": [CHECK],
            **dict.fromkeys(("unsplit_steps", "arrivals_known", "arrivals_unknown"), int),
            "arrivals_without_place": int,
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
    "incidents": [
        {
            "num_processes": int,
            "hangs": [
                {
                    **{"number": int, "host": str, "found": str, "sentence": str, "file": str},
                    "accused": [int],
                    "ended_after_s": float,
                    "stacks": [{"rank": int, "file": str, "problem": str}],
                }
            ],
            "mismatches": [
                {
                    "group": str,
                    "seq": int,
                    "issued": [
                        {
                            **{"op": str, "dtype": str, "reduce_op": str, "size_bytes": int},
                            **{"root": int, "ranks": [int]},
                        }
                    ],
                    "odd_ranks": [int],
                    "sentence": str,
                }
            ],
            "mismatch_count": int,
            "anomalies": [
                {
                    **{"time": str, "what": str, "rank": int, "step": int, "time_ns": int},
                    **{"found_step": int, "phase": str, "before": float, "after": float},
                    "last_step": int,
                    **{"unit": str, "sentence": str},
                }
            ],
            "events": [{"kind": str, "time": str, "sentence": str}],
        }
    ],
    "loss_agreement": {
        "world_sizes": [int],
        **{"steps": int, "samples": int, "worst": float, "worst_world_size": int},
        **{"worst_step": int, "tolerance": float, "agrees": bool},
    },
    "attempts": [
        {
            **{"world_size": int, "number": int, "ranks": int, "steps": int},
            **{"duration_s": float, "lost_s": float, "ending": str},
        }
    ],
}
"""A change here is a change for every reader: raise SCHEMA_VERSION if a field goes or changes."""
