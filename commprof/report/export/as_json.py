"""Export of a run as JSON; ``run.schema.json`` next to this file describes every field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from commprof.analysis.card import Card
from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.checks.losses import LossAgreement
from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.collectives.kinds import CollectiveRow
from commprof.analysis.collectives.mismatches import Mismatch
from commprof.analysis.collectives.nccl import NcclWorld
from commprof.analysis.collectives.sharding import Sharding
from commprof.analysis.cost import Cost
from commprof.analysis.findings import RunFinding, findings
from commprof.analysis.late.incidents import Incidents
from commprof.analysis.rank_summary import RankSummary
from commprof.analysis.scaling import RunResult, Scaling
from commprof.analysis.step.overhead import Overhead
from commprof.analysis.strategies import StrategyRow
from commprof.analysis.summary_result import SummaryResult
from commprof.analysis.verdict import Verdict
from commprof.analysis.world import WorldResult
from commprof.field_groups import plain_fields
from commprof.files import plain
from commprof.satellites import AddedReport

#: Incremented when a field changes its meaning or is removed, not when a field is added. In version
#: 2, ``idle_ms`` of ``kernels`` no longer included copies within and to the device. In version 3,
#: ``wire`` was renamed to ``transfer``.
SCHEMA_VERSION = 3
_INDENT = 2
#: JSON Schema of the files that ``render`` writes.
SCHEMA_FILE: Final = Path(__file__).with_name("run.schema.json")


def render(
    result: RunResult,
    cost: Cost | None = None,
    added: AddedReport | None = None,
    verdict: Verdict | None = None,
    card: Card | None = None,
) -> str:
    """Renders a run as indented JSON; figures that do not exist are null."""
    return _text(_document(result, cost, added, verdict, card))


def _text(value: dict[str, Any]) -> str:
    """Formats a document as indented JSON; NaN and infinity become null."""
    return (_write(value) or json.dumps(plain(value), indent=_INDENT, allow_nan=False)) + "\n"


def _write(value: dict[str, Any]) -> str | None:
    """Formats a document with the C++ module, which is faster; None if that is not possible."""
    try:
        from commprof._reading import plain_json
    except ImportError:  # the module was not built, or is too old
        return None
    return plain_json(value, _INDENT)


def as_dict(
    result: RunResult,
    cost: Cost | None = None,
    added: AddedReport | None = None,
    verdict: Verdict | None = None,
    card: Card | None = None,
) -> dict[str, Any]:
    """Returns a run as a dictionary of plain values, as in the JSON result.

    A run with a trial has the trial's results. Any other run has "verdict" and "card".
    """
    value: dict[str, Any] = plain(_document(result, cost, added, verdict, card))
    return value


def _document(
    result: RunResult,
    cost: Cost | None,
    added: AddedReport | None,
    verdict: Verdict | None,
    card: Card | None,
) -> dict[str, Any]:
    """Returns the dictionary of ``as_dict``, but keeps NaN and infinity."""
    runs = [
        _world(result, world, scale)
        for world, scale in zip(result.worlds, result.scaling, strict=True)
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "timestamp": result.context["timestamp"],
        "context": dict(result.context),
        "runs": runs,
        "overhead": _overhead(result.overhead),
        "failures": [{"num_processes": size, "reason": reason} for size, reason in result.failures],
        "remarks": list(result.remarks),
        "summaries": [_summary(summary) for summary in result.summaries],
        "cost": cost and _cost(cost),
        **(
            {"verdict": _verdict(verdict), "card": card and plain_fields(card)}
            if added is None
            else {added.key: added.plain()}
        ),
        "loss_agreement": _loss_agreement(result.loss_agreement),
        "attempts": [plain_fields(attempt) for attempt in result.attempts],
        "stepless": [
            {
                "num_processes": found.world_size,
                "collectives": list(map(_collective, found.rows)),
            }
            for found in result.stepless
        ],
        "nccl": list(map(_nccl, result.nccl)),
        "incidents": [_incidents(found) for found in result.incidents],
    }


def render_strategies(
    results: Sequence[RunResult],
    rows: Sequence[StrategyRow],
    verdicts: Sequence[Verdict | None],
    cards: Sequence[Card | None],
) -> str:
    """Renders a comparison of strategies as JSON, with the result of each run."""
    runs = zip(results, verdicts, cards, strict=True)
    value = {
        "schema_version": SCHEMA_VERSION,
        "strategies": [_strategy(row) for row in rows],
        "results": [_document(result, None, None, verdict, card) for result, verdict, card in runs],
    }
    return _text(value)


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    bindings = [
        {
            "num_processes": binding.world_size,
            "part": binding.part,
            "largest": _shares(binding.largest),
            "communication": _shares(binding.communication),
        }
        for binding in verdict.bindings
    ]
    return {
        "num_processes": verdict.world_size,
        "headline": verdict.headline,
        "sentences": list(verdict.sentences),
        "bindings": bindings,
        **plain_fields(verdict.next_step),
    }


def _nccl(nccl: NcclWorld) -> dict[str, Any]:
    rows = [
        {
            **plain_fields(row),
            "phases": [{"phase": name, "calls": count} for name, count in row.phases],
        }
        for row in nccl.rows
    ]
    return {**plain_fields(nccl), "rows": rows}


def _sharding(sharding: Sharding) -> dict[str, Any]:
    return {"groups": sharding.groups, "parts": [plain_fields(part) for part in sharding.parts]}


def _shares(parts: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"part": name, "share": share} for name, share in parts]


def _strategy(row: StrategyRow) -> dict[str, Any]:
    operations = [
        {**plain_fields(operation), "overlapped": operation.overlapped}
        for operation in row.operations
    ]
    return {**plain_fields(row), "operations": operations}


def _world(result: RunResult, world: WorldResult, scale: Scaling) -> dict[str, Any]:
    # These keys are common in users' scaling reports.
    return {
        "timestamp": result.context["timestamp"],
        "num_processes": world.world_size,
        "aggregated_metrics": {
            "avg_loss": world.training.average_loss,
            "total_duration_sec": max(rank.duration_s for rank in world.ranks),
            "samples_per_sec": world.training.samples_per_s,
            "samples_source": world.training.samples_source,
            "measured_steps": world.timing.measured_steps,
            "warmup_steps": world.timing.warmup_steps,
            "merged_steps": world.timing.merged_steps,
            "steps_end": world.timing.steps_end,
            "step_median_ms": world.timing.step_median_ms,
            "step_p95_ms": world.timing.step_p95_ms,
            "step_quartiles_ms": list(world.timing.step_quartiles_ms),
            "speedup": scale.speedup,
            "efficiency": scale.efficiency,
            "imbalance": world.imbalance,
            "parts": plain_fields(world.parts),
            "collectives": [_collective(row) for row in world.communication.collectives],
            "compression": [plain_fields(row) for row in world.communication.compression],
            "late_rank": world.lateness.late_rank and plain_fields(world.lateness.late_rank),
            "slower_ranks": world.lateness.slower and plain_fields(world.lateness.slower),
            "wait_costs": [plain_fields(cost) for cost in world.lateness.wait_costs],
            "longer_phase": world.lateness.longer_phase
            and plain_fields(world.lateness.longer_phase),
            "longer_lines": [plain_fields(pair) for pair in world.lateness.longer_lines],
            "grown_functions": world.lateness.grown_functions
            and plain_fields(world.lateness.grown_functions),
            "gains": world.gains and plain_fields(world.gains),
            "sharding": world.communication.sharding and _sharding(world.communication.sharding),
            "stalled_steps": [{"step": step, "ms": ms} for step, ms in world.timing.stalled_steps],
            "overhead": _overhead(world.profiler_cost.overhead),
            "records_per_step": world.profiler_cost.records_per_step,
            "record_cost_ns": world.profiler_cost.record_cost_ns,
            "dropped_records": world.recording.dropped_records,
            "device_collectives": world.recording.device_collectives,
            "device_timed": world.recording.device_timed,
            "device_clock_error_us": world.recording.device_clock_error_us,
            "clock_error_us": world.recording.clock_error_us,
            "missing_ranks": list(world.recording.missing_ranks),
            "problems": list(world.recording.problems),
            "step_losses": list(world.training.step_losses),
            "weights_differ": list(world.training.weights_differ),
            "times_in_flight": [plain_fields(time) for time in world.communication.times_in_flight],
            "host_links": world.communication.host_links
            and _host_links(world.communication.host_links),
            "cross_checks": _checks(world.cross_checks),
            "apart": world.communication.apart and plain_fields(world.communication.apart),
            "causes": [{**plain_fields(cause), "told": cause.told} for cause in world.named_causes],
            "not_known": dict(world.evidence.not_known),
            "findings": list(map(_finding, findings(result.context, world))),
        },
        "rank_results": [_rank(rank) for rank in world.ranks],
    }


def _finding(fact: RunFinding) -> dict[str, Any]:
    return {
        "kind": fact.kind,
        "figures": dict(fact.figures),
        "sentence": fact.brief or fact.caveat or fact.verdict,
    }


def _checks(checks: Sequence[CrossCheck]) -> list[dict[str, Any]]:
    return [{**plain_fields(check), "difference": check.difference} for check in checks]


def _host_links(links: HostLinks) -> dict[str, Any]:
    comparison = {"difference": links.difference, "agrees": links.agrees}
    return {**plain_fields(links), **comparison}


def _rank(rank: RankSummary) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "avg_loss": rank.average_loss,
        "final_loss": rank.final_loss,
        "samples": rank.samples,
        "duration_sec": rank.duration_s,
        "samples_per_sec": rank.samples_per_s,
        "parts": plain_fields(rank.parts),
        "before_rss_bytes": rank.before_rss_bytes,
        "peak_rss_bytes": rank.peak_rss_bytes,
        "device_peak_bytes": rank.device_peak_bytes,
        "device": rank.device and plain_fields(rank.device),
        "kernels": rank.kernels and plain_fields(rank.kernels),
    }


def _summary(summary: SummaryResult) -> dict[str, Any]:
    value = plain_fields(summary)
    value["cross_checks"] = _checks(summary.cross_checks)
    return {"num_processes": value.pop("world_size"), **value}


def _cost(cost: Cost) -> dict[str, Any]:
    rows = [plain_fields(row) for row in cost.rows]
    return {
        **plain_fields(cost),
        "rows": [{"num_processes": row.pop("world_size"), **row} for row in rows],
    }


def _collective(row: CollectiveRow) -> dict[str, Any]:
    document = plain_fields(row)
    for name in ("group", "group_size", "group_ranks"):
        document[name] = document[name] or None
    if not document.pop("sizes_known"):
        document |= {"size_bytes": None, "total_bytes": None}
    return {
        **document,
        "phases": [{"phase": name, "calls": calls} for name, calls in row.phases],
        "callers": [{"caller": line, "calls": calls} for line, calls in row.callers],
    }


def _overhead(overhead: Overhead | None) -> dict[str, Any] | None:
    if overhead is None:
        return None
    cpu = overhead.cpu
    return {
        **plain_fields(overhead.wall),
        "cpu": cpu
        and {"on_over_off": plain_fields(cpu.on_over_off), "control": plain_fields(cpu.control)},
        "measurable": overhead.best.measurable,
        "told_apart": overhead.best.told_apart,
    }


def _incidents(incidents: Incidents) -> dict[str, Any]:
    return {
        "num_processes": incidents.world_size,
        "hangs": [plain_fields(hang) for hang in incidents.hangs],
        "mismatches": [_mismatch(one) for one in incidents.mismatches],
        "mismatch_count": incidents.mismatch_count,
        "anomalies": [
            {"time": time, **plain_fields(one), "unit": one.unit, "sentence": one.sentence}
            for time, one in incidents.anomalies
        ],
        "events": [plain_fields(event) for event in incidents.events],
        "last_wait": incidents.last_wait and plain_fields(incidents.last_wait),
    }


def _mismatch(mismatch: Mismatch) -> dict[str, Any]:
    return {
        "group": mismatch.group,
        "seq": mismatch.seq,
        "issued": [
            {**plain_fields(issued), "ranks": list(ranks)} for issued, ranks in mismatch.issued
        ],
        "odd_ranks": list(mismatch.odd_ranks),
        "sentence": mismatch.sentence,
    }


def _loss_agreement(agreement: LossAgreement | None) -> dict[str, Any] | None:
    if agreement is None:
        return None
    return {**plain_fields(agreement), "agrees": agreement.agrees}
