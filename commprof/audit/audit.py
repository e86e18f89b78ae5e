"""All rules, and what they find in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from commprof.audit import scaling_rules, throughput_rules
from commprof.audit.checks import Audit, Check, Finding
from commprof.audit.document import Document
from commprof.audit.read import read_document


class Rule(NamedTuple):
    """One kind of error that a report may contain, with the function that finds it."""

    name: str
    #: What it means where it does not hold.
    meaning: str
    checks: Callable[[Document], Iterator[Check]]


RULES: tuple[Rule, ...] = (
    Rule(
        "throughput-from-latency",
        "throughput is not global batch over time per iteration",
        throughput_rules.from_latency,
    ),
    Rule(
        "throughput-from-work",
        "throughput is not samples over time",
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
        "speed-up is not the ratio of samples over time",
        scaling_rules.speedup_from_work,
    ),
    Rule(
        "efficiency",
        "efficiency is not speed-up over growth in ranks",
        scaling_rules.efficiency,
    ),
    Rule(
        "super-linear",
        "more speed-up than ranks were added: the base is too slow (warm-up, another amount of "
        "work), or the report must explain it",
        scaling_rules.super_linear,
    ),
    Rule("amdahl", "Amdahl's law gives another speed-up", scaling_rules.amdahl),
    Rule(
        "warm-up",
        "the first epoch is warm-up and inside the total",
        throughput_rules.warmup_inside,
    ),
    Rule("ranks-in-turn", "the ranks ran one after another", throughput_rules.ranks_in_turn),
    Rule("slowest-rank", "one rank took longer than all", throughput_rules.slowest_rank),
    Rule(
        "epochs", "the total is not epochs times the time of one", throughput_rules.epochs_of_total
    ),
    Rule(
        "changing-work",
        "neither the batch per rank nor the global batch stays: the rows do different work",
        throughput_rules.changing_work,
    ),
    Rule("parts", "the parts do not add up to the step", throughput_rules.parts_of_step),
    Rule("cost", "cost is not ranks times hours times price", scaling_rules.cost_total),
    Rule("cost-per-unit", "cost per unit is not cost over units", scaling_rules.cost_per_unit),
    Rule(
        "cost-efficiency",
        "cost efficiency is not the ratio of costs",
        scaling_rules.cost_efficiency,
    ),
    Rule(
        "repeated-overhead",
        "the report gives two communication overheads",
        scaling_rules.repeated_overhead,
    ),
    Rule(
        "repeated-scaling",
        "the text and the table give two figures for the same",
        scaling_rules.repeated_scaling,
    ),
    Rule(
        "overhead-and-efficiency",
        "the rows lose more than the communication overhead that the report claims, and it does "
        "not say to what",
        scaling_rules.overhead_against_efficiency,
    ),
    Rule(
        "combined",
        "all techniques together give less than one of them alone",
        scaling_rules.combined_techniques,
    ),
)


def audit(text: str) -> Audit:
    """Holds a report against its own arithmetic.

    Args:
        text: JSON of commprof, JSON with num_processes or world_size, Markdown, or CSV.

    Raises:
        ValueError: says why the text is no scaling report.
    """
    document = read_document(text)
    found = [(rule, check) for rule in RULES for check in rule.checks(document)]
    return Audit(
        rows=sum(len([row for row in series.rows if row.ranks]) for series in document.series),
        checks=len(found),
        findings=tuple(
            Finding(rule.name, rule.meaning, check.row, check.stated, check.implied)
            for rule, check in found
            if not check.agrees
        ),
    )
