from __future__ import annotations

import dataclasses
import math
from typing import Any, get_type_hints

import numpy as np

from commprof.analysis import detail as step_detail
from commprof.analysis.collectives.compression import CompressionRow
from commprof.analysis.collectives.in_flight import StepTimesInFlight
from commprof.analysis.collectives.kinds import CollectiveRow, Spread
from commprof.analysis.collectives.mismatches import Issued, Mismatch
from commprof.analysis.detail import Later, WorldDetail
from commprof.analysis.evidence import Evidence
from commprof.analysis.late.anomalies import COMPUTE, Anomaly
from commprof.analysis.late.incidents import HangReport, Incidents, StackFile, WatchEvent
from commprof.analysis.late.last_wait import LastWait
from commprof.analysis.late.slower_ranks import SlowerRanks
from commprof.analysis.rank_summary import RankSummary, StepParts
from commprof.analysis.scaling import RunResult, scale
from commprof.analysis.step.breakdown import WORTH_A_LOOK
from commprof.analysis.step.overhead import Overhead, OwnCost
from commprof.analysis.step.rank_parts import PairWaits
from commprof.analysis.summary_result import (
    LastRow,
    OperationRow,
    Quantiles,
    SummaryLateRank,
    SummaryResult,
)
from commprof.analysis.timeline.drawn_timeline import Timeline
from commprof.analysis.world import WorldResult
from commprof.field_groups import FieldGroup
from commprof.stats.intervals import Interval

PARTS = StepParts(
    data_ms=1.0,
    forward_ms=20.0,
    backward_ms=40.0,
    exposed_ms=30.0,
    optimizer_ms=5.0,
    other_ms=4.0,
    step_ms=100.0,
    wait_ms=10.0,
    transfer_ms=20.0,
    unsplit_ms=0.0,
    no_core_ms=0.3,
    hidden_ms=12.5,
)
OVERHEAD = Overhead(
    cpu=OwnCost(Interval(1.004, 0.998, 1.01), Interval(1.001, 0.99, 1.012), 8, 8),
    wall=OwnCost(Interval(1.012, 0.98, 1.044), Interval(0.999, 0.97, 1.03), 8, 8),
)


def context(**values: Any) -> dict[str, Any]:
    return {
        "timestamp": "2026-11-01T12:00:00+00:00",
        "command": "python -m commprof.run --nproc 2",
        "description": "timed: a workload.",
        "scaling": "weak",
        "backend": "gloo",
        "torch": "2.13.0+cpu",
        "capture": "native",
        "threads_per_rank": 1,
        "world_sizes": [1, 2],
        "machine": {"usable_cpu_count": 8, "cpu_model": "AMD EPYC"},
        "errors": {},
        **values,
    }


def parts(**values: float) -> StepParts:
    return dataclasses.replace(PARTS, **values)


def collective(**values: Any) -> CollectiveRow:
    defaults: dict[str, Any] = {
        "op": "all_reduce",
        "group": "0",
        "group_description": "default_pg",
        "group_size": 2,
        "group_ranks": (0, 1),
        "dtype": "Float",
        "reduce_op": "sum",
        "size_bytes": (4_000_000, 4_000_000),
        "calls": 20,
        "failed": 0,
        "calls_per_step": 1.0,
        "total_bytes": 80_000_000,
        "phases": (("backward", 20),),
        "callers": (),
        "duration": Spread(12.0, 20.0),
        "queue": Spread(1.0, 2.0),
        "wait": Spread(3.0, 9.0),
        "transfer": Spread(8.0, 10.0),
        "exposed_ms": 5.5,
        "algbw_gb_per_s": 0.5,
        "busbw_gb_per_s": 0.5,
    }
    return built(CollectiveRow, {**defaults, **values})


def compression(**values: Any) -> CompressionRow:
    defaults: dict[str, Any] = {
        "scheme": "int8",
        "bucket": 0,
        "gradient_bytes": 4_000_000,
        "calls": 20,
        "queue_ms": 0.5,
        "encode_ms": 0.25,
        "exchange_ms": 8.0,
        "reduce_ms": 0.125,
        "decode_ms": 0.0004,
        "done_ms": 8.9,
        "payload_bytes": 1e6,
        "wire_bytes": 1e6,
        "ratio": 4.0,
        "relative_error": math.nan,
        "cosine": math.nan,
        "residual_ratio": math.nan,
        "zeroed": math.nan,
        "saturated": math.nan,
        "non_finite": 0,
    }
    return built(CompressionRow, {**defaults, **values})


def world(world_size: int = 1, **values: Any) -> WorldResult:
    ranks = tuple(
        RankSummary(
            rank=rank,
            parts=values.get("parts", PARTS),
            samples=100,
            duration_s=1.0,
            samples_per_s=100.0,
            average_loss=2.5,
            final_loss=2.25,
            host="host",
            machine="boot",
            before_rss_bytes=300e6,
            peak_rss_bytes=800e6,
        )
        for rank in range(world_size)
    )
    evidence = {name: values.pop(name) for name in [*values] if name in _OF_EVIDENCE}
    defaults: dict[str, Any] = {
        "world_size": world_size,
        "steps": 12,
        "warmup_steps": 2,
        "samples_per_s": 100.0 * world_size,
        "samples_per_step": (16.0, 16.0),
        "step_median_ms": 100.0,
        "step_p95_ms": 120.0,
        "step_quartiles_ms": (98.0, 102.0),
        "parts": PARTS,
        "imbalance": 0.0,
        "average_loss": 2.5,
        "ranks": ranks,
        "collectives": (),
        "compression": (),
        "late_rank": None,
        "overhead": OVERHEAD,
        "records_per_step": 20.0,
        "record_cost_ns": 50.0,
        "overhead_samples": (),
        "missing_ranks": (),
        "dropped_records": 0,
        "device_collectives": 0,
        "clocks_shared": True,
        "clock_error_us": 0.0,
        "problems": (),
        "cross_checks": (),
    }
    made = {**defaults, **values}
    # In a short run, the calls of all measured steps are analysed.
    made.setdefault("call_steps", made["steps"] - made["warmup_steps"])
    return built(WorldResult, {"evidence": evidence_about(made, **evidence), **made})


def built(made: type[Any], values: dict[str, Any]) -> Any:
    """Makes a result from values of its fields, and of the fields of its groups.

    A group without any value keeps its default.
    """
    left = dict(values)
    defaults = {f.name for f in dataclasses.fields(made) if f.default is not dataclasses.MISSING}
    for name, group in _groups(made).items():
        own = {field: left.pop(field) for field in _names(group) if field in left}
        if own or name not in defaults | left.keys():
            left[name] = built(group, own)
    return made(**left)


def with_fields(base: Any, **values: Any) -> Any:
    left = dict(values)
    groups = {
        name: with_fields(getattr(base, name), **own)
        for name, group in _groups(type(base)).items()
        if (own := {field: left.pop(field) for field in _names(group) if field in left})
    }
    return dataclasses.replace(base, **groups, **left)


def _groups(made: type[Any]) -> dict[str, type[Any]]:
    hints = get_type_hints(made)
    return {
        name: hint
        for name in _own_names(made)
        if isinstance(hint := hints[name], type) and issubclass(hint, FieldGroup)
    }


def _own_names(made: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(made)]


def _names(made: type[Any]) -> list[str]:
    groups = _groups(made).values()
    return [*_own_names(made), *(name for group in groups for name in _names(group))]


_OF_EVIDENCE = (
    "times",
    "training_thread",
    "why_none",
    "most_waited_for",
    "steps_marked",
)


def evidence_about(made: dict[str, Any], **values: Any) -> Evidence:
    shown = made["parts"]
    untimed = made["device_collectives"] > 0 and not made.get("device_timed")
    return built(
        Evidence,
        {
            "world_size": made["world_size"],
            "missing_ranks": made["missing_ranks"],
            "clocks_shared": made["clocks_shared"],
            "steps_marked": True,
            "times": True,
            "device": False,
            "training_thread": True,
            "work": True,
            "collectives": not math.isnan(shown.exposed_ms),
            "forward": shown.forward_ms != 0,
            "on_all_ranks": True,
            "unseen": untimed
            and not made.get("foreign")
            and shown.exposed_ms < WORTH_A_LOOK * shown.step_ms,
            "why_none": "",
            "exposed_ms": shown.exposed_ms,
            "unsplit_ms": shown.unsplit_ms,
            "waiting_known": not math.isnan(shown.wait_ms),
            **values,
        },
    )


def summary(world_size: int = 1, **values: Any) -> SummaryResult:
    operation = OperationRow(
        op="all_reduce",
        group="0",
        below_bytes=2**21,
        count=1200 * world_size,
        bytes=1_500_000_000 * world_size,
        failed=1,
        unfinished=2,
        duration=Quantiles(1198, 12.5, 20.25, 31.0, 15_000.0),
        wait=Quantiles(7, 0.0125, 0.5, 0.75, 1.5),
        until_last=Quantiles(1190, 2.5, 4.0, 6.0, 3_000.0),
        transfer=Quantiles(1190, 10.0, 16.0, 25.0, 12_000.0),
        algbw_gb_per_s=0.125,
        busbw_gb_per_s=0.125,
    )
    defaults: dict[str, Any] = {
        "world_size": world_size,
        "ranks": tuple(range(world_size)),
        "covered_s": 60.0,
        "steps": 600,
        "step_median_ms": 99.0,
        "step_p95_ms": 120.0,
        "data_ms": 1.0,
        "forward_ms": 20.0,
        "backward_ms": 40.0,
        "exposed_ms": 30.0,
        "optimizer_ms": 5.0,
        "other_ms": 4.0,
        "step_ms": 100.0,
        "steps_end": "declared",
        "exposed_p95_ms": 45.0,
        "exposed_wait_ms": 10.0,
        "exposed_transfer_ms": 20.0,
        "unsplit_steps": 1,
        "arrivals_unknown": 10,
        "arrivals_without_place": 0,
        "arrivals_unlisted": 0,
        "arrivals_partial": 0,
        "arrivals_known": 2390,
        "machines": 1,
        "clocks_compared": False,
        "hosts_heard": 0,
        "unsent_datagrams": 0,
        "skipped_collectives": 0,
        "arrival_clock_error_p95_us": math.nan,
        "arrival_clock_error_us": math.nan,
        "last": (LastRow(1, 0.75, 2.5),),
        "late_rank": SummaryLateRank(1, 7.5, 0.9, 0.0005, 4.5, "data", 0.8, 2, (3,)),
        "slower_ranks": SlowerRanks((1, 2), ("node-1",), "data", 7.0, "median", 7.5, 2, 0.9),
        "operations": (operation,),
        "moved": 0,
        "dropped_records": 0,
        "unmatched": 0,
        "problems": (),
        "cross_checks": (),
    }
    return built(SummaryResult, {**defaults, **values})


def hang_report(**values: Any) -> HangReport:
    fields: dict[str, Any] = {
        "number": 1,
        "host": "h",
        "found": "2026-11-01T12:00:00.000+00:00",
        "sentence": "rank 1 did not arrive",
        "accused": (1,),
        "ended_after_s": 2.5,
        "stacks": (StackFile(1, "hang_1_rank_1.stack.txt", ""),),
        "file": "hang_1.json",
    }
    return HangReport(**{**fields, **values})


def incidents(**values: Any) -> Incidents:
    issued = [Issued("all_reduce", "Float", "sum", size, -1) for size in (8, 16)]
    mismatch = Mismatch("0", 3, ((issued[0], (0, 2)), (issued[1], (1,))), ())
    anomaly = Anomaly(COMPUTE, 1, 120, 5_000_000_000, 127, "backward", 20.0, 30.0)
    fields: dict[str, Any] = {
        "world_size": 3,
        "hangs": (hang_report(),),
        "mismatches": (mismatch,),
        "mismatch_count": 5,
        "anomalies": (("2026-11-01T12:00:05+00:00", anomaly),),
        "events": (WatchEvent("anomaly", "2026-11-01T12:01:00+00:00", "step time rose"),),
        "last_wait": LastWait(
            (1,), (0, 2), 30.0, True, "the job hung: ranks 0, 2 had waited for rank 1"
        ),
    }
    return Incidents(**{**fields, **values})


def run_result(*worlds: WorldResult, **values: Any) -> RunResult:
    defaults: dict[str, Any] = {
        "context": context(),
        "worlds": worlds,
        "scaling": scale(worlds),
        "overhead": OVERHEAD,
        "failures": (),
        "remarks": (),
    }
    return RunResult(**{**defaults, **values})


def detail(world_size: int = 2, steps: int = 20, **parts: object) -> WorldDetail:
    """Returns steps of 100 ms with these ``parts``: a number of ms, or an array of ms per step.

    "other" is the rest of the step, and "exposed" by default the sum of wait and transfer.
    """
    epoch_samples = float(parts.pop("epoch_samples", math.nan))  # type: ignore[arg-type]
    no_core_share = float(parts.pop("no_core_share", 0.0))  # type: ignore[arg-type]
    with_cores = parts.pop("with_cores", None)
    given = {name: np.broadcast_to(np.asarray(x, float), (steps,)) for name, x in parts.items()}
    zero = np.zeros(steps)
    values = {name: given.get(name, zero) for name in step_detail.PARTS}
    values |= {name: given.get(name, zero + math.nan) for name in step_detail.OF_OTHER}
    values["step"] = given.get("step", zero + 100)
    values["exposed"] = given.get(
        "exposed", np.nan_to_num(values["wait"]) + np.nan_to_num(values["transfer"])
    )
    named = ("data", "forward", "backward", "exposed", "optimizer")
    none = np.zeros(0, dtype=np.int64)
    values["other"] = values["step"] - sum(values[name] for name in named)
    return WorldDetail(
        world_size=world_size,
        ranks=tuple(range(world_size)),
        steps=np.arange(steps),
        parts_ms={name: np.tile(row, (world_size, 1)) for name, row in values.items()},
        slowest_ms=values["step"],
        with_cores_ms=values["step"] if with_cores is None else np.asarray(with_cores, float),
        waited_for=PairWaits(np.arange(world_size), world_size, none, none, np.zeros(0)),
        drawn=Later(
            None,
            Timeline(np.arange(steps), steps, (), (), clocks_shared=True),
            StepTimesInFlight((), *[np.zeros(0, dtype=np.int64)] * 4, np.zeros(0)),
        ),
        clocks_shared=True,
        epoch_samples=epoch_samples,
        no_core_share=no_core_share,
    )
