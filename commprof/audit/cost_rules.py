"""Money, from ranks, hours and the price of one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commprof.audit.checks import Check, best_reading, check, cited
from commprof.audit.document import Document, Row
from commprof.audit.figure import exact
from commprof.audit.throughput_rules import has
from commprof.text import counted

_SECONDS_PER_HOUR = 3600.0
#: Ranks of one machine, where the price may be the machine's.
_MACHINES = (2, 4, 8, 16)


def total(document: Document) -> Iterator[Check]:
    """Cost is ranks x hours x price, or machines x hours x price."""
    for series in document.series:
        rows = [row for row in series.rows if row.ranks and has(row, "cost", "duration")]
        machines = (1,) if document.price_is_per_rank else (1, math.inf, *_MACHINES)
        yield from best_reading(
            [
                [c for row in rows if (c := _total(row, document, per_machine))]
                for per_machine in machines
            ]
        )


def per_unit(document: Document) -> Iterator[Check]:
    """Cost per sample or epoch is the cost over the number of those that it paid for."""
    for series in document.series:
        for row in series.rows:
            if not row.ranks or not has(row, "cost", "unit_cost"):
                continue
            unit, time = row.quantities["unit_cost"], row.quantities.get("duration")
            if time is None:
                continue
            noun = "epochs" if unit.per_epochs else "samples"
            size = unit.per_epochs or unit.per_samples
            work = time.per_epochs if unit.per_epochs else time.per_samples
            if work:
                cost = row.figures["cost"]
                text = f"cost {cited(cost)} of {work:,.0f} {noun}, for {size:,.0f} of them"
                yield check(row, "unit_cost", text, cost.span * exact(size / work), "$")


def efficiency(document: Document) -> Iterator[Check]:
    """Cost efficiency is the base's cost over the cost."""
    for series in document.series:
        base = series.base("cost_efficiency", 1.0)
        for row in series.rows:
            if base is None or row is base or not has(row, "cost", "cost_efficiency"):
                continue
            if has(base, "cost"):
                above, below = base.figures["cost"], row.figures["cost"]
                text = f"cost {cited(above)} / {cited(below)}"
                yield check(row, "cost_efficiency", text, above.span / below.span, "x")


def _total(row: Row, document: Document, per_machine: float) -> Check | None:
    """The cost against what machines of so many ranks cost; infinity is one for all."""
    price = row.figures.get("price") or document.fact("price")
    if price is None:
        return None
    time = row.figures["duration"]
    hours = time.span / exact(_SECONDS_PER_HOUR)
    machines = max(1, math.ceil(row.ranks / per_machine))
    paid = row.name if per_machine == 1 else counted(machines, "machine")
    text = f"{paid} x {cited(time)} x {cited(price)} per hour"
    return check(row, "cost", text, hours * price.span * exact(machines), "$")
