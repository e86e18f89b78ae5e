"""The list of rules, and the audit of a report with all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from commprof.audit import scaling_rules, throughput_rules
from commprof.audit.checks import Audit, AuditCheck, Finding
from commprof.audit.document import Document
from commprof.audit.read import read_document


class Rule(NamedTuple):
    """One kind of error that a report may contain, with the function that finds it."""

    name: str
    #: Meaning of a violation, as printed with a finding.
    meaning: str
    checks: Callable[[Document], Iterator[AuditCheck]]


RULES: tuple[Rule, ...] = (
    Rule(
        "throughput-from-latency",
        "throughput is not global batch / time per iteration",
        throughput_rules.from_latency,
    ),
    Rule(
        "throughput-from-work",
        "throughput is not samples / time",
        throughput_rules.from_work,
    ),
    Rule(
        "speedup-from-throughput",
        "speed-up is not the ratio of the throughputs",
        scaling_rules.speedup_from_rates,
    ),
    Rule(
        "speedup-from-time",
        "speed-up is not the ratio of the times for the same work",
        scaling_rules.speedup_from_times,
    ),
    Rule(
        "speedup-from-work",
        "speed-up is not this row's samples / time, divided by the baseline's samples / time",
        scaling_rules.speedup_from_work,
    ),
    Rule(
        "efficiency",
        "efficiency differs from speed-up divided by growth in ranks",
        scaling_rules.efficiency,
    ),
    Rule(
        "super-linear",
        "the speed-up is larger than the growth in ranks: the baseline is too slow (warm-up, "
        "another amount of work), or the report must explain the cause",
        scaling_rules.super_linear,
    ),
    Rule("amdahl", "Amdahl's law gives a different speed-up", scaling_rules.amdahl),
    Rule(
        "warm-up",
        "the first epoch includes warm-up, and the total or the mean includes the first epoch",
        throughput_rules.warmup_inside,
    ),
    Rule("ranks-in-turn", "the ranks ran one after another", throughput_rules.ranks_in_turn),
    Rule(
        "slowest-rank",
        "one rank took longer than the time stated for all",
        throughput_rules.slowest_rank,
    ),
    Rule(
        "epochs", "the total is not epochs times time per epoch", throughput_rules.epochs_of_total
    ),
    Rule(
        "changing-work",
        "neither the batch per rank nor the global batch is constant: the rows do different work",
        throughput_rules.changing_work,
    ),
    Rule("parts", "the parts do not add up to the step", throughput_rules.parts_of_step),
    Rule(
        "cost",
        "cost is not ranks, or machines, times hours times price",
        scaling_rules.cost_total,
    ),
    Rule("cost-per-unit", "cost per unit is not cost / units", scaling_rules.cost_per_unit),
    Rule(
        "cost-efficiency",
        "cost efficiency is not the ratio of costs",
        scaling_rules.cost_efficiency,
    ),
    Rule(
        "repeated-overhead",
        "the report states two different communication overheads",
        scaling_rules.repeated_overhead,
    ),
    Rule(
        "repeated-scaling",
        "the text and the table state different figures for the same quantity",
        scaling_rules.repeated_scaling,
    ),
    Rule(
        "overhead-and-efficiency",
        "the efficiency lost is larger than the communication overhead that the report claims, "
        "so the overhead alone does not explain it",
        scaling_rules.overhead_against_efficiency,
    ),
    Rule(
        "combined",
        "all techniques together gain less than one of them alone",
        scaling_rules.combined_techniques,
    ),
)


def audit(text: str) -> Audit:
    """Checks a report's figures against each other with all rules.

    Args:
        text: JSON of commprof, JSON with num_processes or world_size, Markdown, or CSV.

    Raises:
        ValueError: the text is not a scaling report; the message gives the reason.
    """
    document = read_document(text)
    checks = [(rule, check) for rule in RULES for check in rule.checks(document)]
    return Audit(
        rows=sum(len([row for row in series.rows if row.ranks]) for series in document.series),
        checks=len(checks),
        findings=tuple(
            Finding(rule.name, rule.meaning, check.row, check.stated, check.implied)
            for rule, check in checks
            if not check.agrees
        ),
    )
