"""Rules for speed-up, efficiency, overhead and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commprof.audit.checks import AuditCheck, Quote, best_reading, check, cited, quote, words
from commprof.audit.document import Document, Row, Series, Technique
from commprof.audit.figure import Span, StatedFigure, exact
from commprof.audit.throughput_rules import has, works_of
from commprof.text import counted

#: Efficiencies up to this much above 100 % are accepted as noise.
NOISE = 0.05


def speedup_from_rates(document: Document) -> Iterator[AuditCheck]:
    """Checks that speed-up is the row's throughput divided by the base row's throughput."""
    for series in document.series:
        base = series.base("speedup", 1.0)
        for row in _others(series, base, "speedup", "throughput"):
            if base is not None and has(base, "throughput"):
                above, below = row.figures["throughput"], base.figures["throughput"]
                text = f"throughput {cited(above)} / {cited(below)}"
                yield check(row, "speedup", text, above.span / below.span, "x")


def speedup_from_times(document: Document) -> Iterator[AuditCheck]:
    """Checks that speed-up is the base row's time divided by the row's time, for the same work."""
    for series in document.series:
        base = series.base("speedup", 1.0)
        for name in ("epoch_s", "duration"):
            for row in _others(series, base, "speedup", name):
                if base is None or not has(base, name) or not _same_work(row, base, name):
                    continue
                above, below = base.figures[name], row.figures[name]
                text = f"time {cited(above)} / {cited(below)}"
                yield check(row, "speedup", text, above.span / below.span, "x")


def speedup_from_work(document: Document) -> Iterator[AuditCheck]:
    """Checks that speed-up is the ratio of the two rows' rates, which are samples / time."""
    for series in document.series:
        base, works = series.base("speedup", 1.0), works_of(series, document)
        for row in _others(series, base, "speedup", "duration"):
            if base is None or not {base.ranks, row.ranks} <= works.keys():
                continue
            times = row.figures["duration"], base.figures["duration"]
            rates = [works[r.ranks][1] / t.span for r, t in zip((row, base), times, strict=True)]
            text = (
                f"{works[row.ranks][0]} in {cited(times[0])}, against "
                f"{works[base.ranks][0]} in {cited(times[1])}"
            )
            yield check(row, "speedup", text, rates[0] / rates[1], "x")


def efficiency(document: Document) -> Iterator[AuditCheck]:
    """Checks that efficiency is speed-up divided by the growth in ranks."""
    for series in document.series:
        for row in series.rows:
            if not row.ranks or not has(row, "efficiency"):
                continue
            if has(row, "speedup"):
                base = series.base("speedup", 1.0)
                ranks = base.ranks if base is not None else 1
                growth = row.ranks / ranks
                text = f"speed-up {cited(row.figures['speedup'])} / {growth:g}"
                span = row.figures["speedup"].span / exact(growth)
                yield check(row, "efficiency", text, span, "%")
            else:
                yield from _efficiency_of_rates(series, row)
    for stated in document.statements:
        if len(stated.figures) == 2:
            row = Row(stated.ranks, stated.figures)
            growth = stated.ranks / stated.base_ranks
            text = f"speed-up {cited(stated.figures['speedup'])} / {growth:g}"
            span = stated.figures["speedup"].span / exact(growth)
            yield check(row, "efficiency", text, span, "%")


def super_linear(document: Document) -> Iterator[AuditCheck]:
    """Checks that speed-up is at most the growth in ranks, and efficiency at most 100 %."""
    for series in document.series:
        for row in series.rows:
            if row.ranks and has(row, "efficiency"):
                most = Quote("at most", Span(0.0, 1.0, 1.0 + NOISE), "%")
                yield AuditCheck(row.name, quote("efficiency", row.figures["efficiency"]), most)
            elif row.ranks and (speedup := _speedup(series, row)):
                base, stated = speedup
                growth = row.ranks / base.ranks
                bound = Span(0.0, growth, growth * (1.0 + NOISE))
                yield AuditCheck(
                    row.name, stated, Quote(f"{growth:g} times the ranks give at most", bound, "x")
                )


def amdahl(document: Document) -> Iterator[AuditCheck]:
    """Checks that speed-up by Amdahl's law is 1 / ((1 - P) + P / N) for the parallel share P.

    Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", AFIPS 1967.
    """
    listed = [Row(ranks, {"amdahl_speedup": stated}) for ranks, stated in document.amdahl]
    rows = [row for series in document.series for row in series.rows]
    for row in [*listed, *rows]:
        share = row.figures.get("parallel_share") or document.fact("parallel_share")
        if share is None or not 0 < share.span.value <= 1:
            continue
        if not row.ranks or not has(row, "amdahl_speedup"):
            continue
        span = Span(*(_amdahl(p, row.ranks) for p in _rounded(share.span)))
        text = f"1 / ((1 - P) + P / {row.ranks}) with P = {cited(share)}"
        yield check(row, "amdahl_speedup", text, span, "x")


def _others(series: Series, base: Row | None, *names: str) -> Iterator[Row]:
    return (row for row in series.rows if row.ranks and row is not base and has(row, *names))


def _same_work(row: Row, base: Row, name: str) -> bool:
    """True if the headers say that the times of both rows are for the same amount of work."""
    if name == "epoch_s":
        return True
    work = [
        (quantity.per_samples, quantity.per_epochs)
        for compared in (row, base)
        if (quantity := compared.quantities.get(name)) is not None
    ]
    return len(work) == 2 and work[0] == work[1] != (0.0, 0.0)


def _efficiency_of_rates(series: Series, row: Row) -> Iterator[AuditCheck]:
    base = series.base("efficiency", 1.0)
    if base is None or base is row or not (has(base, "throughput") and has(row, "throughput")):
        return
    above, below = row.figures["throughput"], base.figures["throughput"]
    growth = row.ranks / base.ranks
    text = f"throughput {cited(above)} / {cited(below)} / {growth:g}"
    yield check(row, "efficiency", text, above.span / below.span / exact(growth), "%")


def _speedup(series: Series, row: Row) -> tuple[Row, Quote] | None:
    base = series.base("speedup", 1.0)
    if base is None or base is row or base.ranks >= row.ranks:
        return None
    if has(row, "speedup"):
        return base, quote("speedup", row.figures["speedup"])
    if not (has(row, "throughput") and has(base, "throughput")):
        return None
    above, below = row.figures["throughput"], base.figures["throughput"]
    return base, Quote(
        f"throughput {cited(above)} / {cited(below)} =", above.span / below.span, "x"
    )


def _rounded(share: Span) -> tuple[float, float, float]:
    """Returns lower bound, value and upper bound of a parallel share.

    ``share`` is the interval for a truncated number. Authors do not truncate the parallel share,
    but choose a round number, so the result extends as far above the value as below.
    """
    half = share.value - share.low
    return share.low, share.value, min(1.0, share.value + half)


def _amdahl(share: float, ranks: int) -> float:
    return 1.0 / ((1.0 - share) + share / ranks)


_SECONDS_PER_HOUR = 3600.0
#: Numbers of ranks per machine to try, because the price may be per machine.
_MACHINES = (2, 4, 8, 16)


def cost_total(document: Document) -> Iterator[AuditCheck]:
    """Checks that cost is ranks x hours x price, or machines x hours x price."""
    for series in document.series:
        rows = [row for row in series.rows if row.ranks and has(row, "cost", "duration")]
        machines = (1,) if document.price_is_per_rank else (1, math.inf, *_MACHINES)
        yield from best_reading(
            [
                [c for row in rows if (c := _total(row, document, per_machine))]
                for per_machine in machines
            ]
        )


def cost_per_unit(document: Document) -> Iterator[AuditCheck]:
    """Checks that the cost per sample or per epoch agrees with the total cost."""
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
                text = f"cost {cited(cost)} for {work:,.0f} {noun}, scaled to {size:,.0f}"
                yield check(row, "unit_cost", text, cost.span * exact(size / work), "$")


def cost_efficiency(document: Document) -> Iterator[AuditCheck]:
    """Checks that cost efficiency is the base row's cost divided by the row's cost."""
    for series in document.series:
        base = series.base("cost_efficiency", 1.0)
        for row in series.rows:
            if base is None or row is base or not has(row, "cost", "cost_efficiency"):
                continue
            if has(base, "cost"):
                above, below = base.figures["cost"], row.figures["cost"]
                text = f"cost {cited(above)} / {cited(below)}"
                yield check(row, "cost_efficiency", text, above.span / below.span, "x")


def _total(row: Row, document: Document, per_machine: float) -> AuditCheck | None:
    """Compares cost with machines x hours x price; None if the price is not stated.

    ``per_machine`` is the number of ranks per machine; if infinite, one machine has all ranks.
    """
    price = row.figures.get("price") or document.fact("price")
    if price is None:
        return None
    time = row.figures["duration"]
    hours = time.span / exact(_SECONDS_PER_HOUR)
    machines = max(1, math.ceil(row.ranks / per_machine))
    paid = row.name if per_machine == 1 else counted(machines, "machine")
    text = f"{paid} x {cited(time)} x {cited(price)} per hour"
    return check(row, "cost", text, hours * price.span * exact(machines), "$")


#: The loss of efficiency may exceed the stated overhead by this much, because of noise.
_NOISE = 0.03


def repeated_overhead(document: Document) -> Iterator[AuditCheck]:
    """Checks that the report states the same communication overhead everywhere."""
    stated = document.facts.get("overhead", ())
    for later in stated[1:]:
        implied = Quote(f"overhead {cited(stated[0])}", stated[0].span)
        yield AuditCheck("the report", quote("overhead", later), implied)


def repeated_scaling(document: Document) -> Iterator[AuditCheck]:
    """Checks that sentences state the same speed-up or efficiency as the report's tables."""
    for stated in document.statements:
        for name, figure in stated.figures.items():
            stated_again = _in_tables(document, stated.ranks, name)
            if stated.base_ranks == 1 and len(stated_again) == 1:
                row = f"{stated.ranks} ranks"
                yield AuditCheck(row, quote(name, figure), quote(name, stated_again[0]))


def overhead_against_efficiency(document: Document) -> Iterator[AuditCheck]:
    """Checks that the overhead is at least 1 minus the efficiency of each row.

    Checks nothing if the document states several overheads.
    """
    stated = document.facts.get("overhead", ())
    if len(stated) != 1:
        return
    for series in document.series:
        for row in series.rows:
            figure = row.figures.get("efficiency")
            if row.ranks < 2 or figure is None:
                continue
            lost = Span(1.0 - figure.span.high, 1.0 - figure.span.value, 1.0 - figure.span.low)
            bound = Span(max(0.0, lost.low - _NOISE), max(0.0, lost.value), float("inf"))
            text = f"efficiency {cited(figure)} loses"
            yield AuditCheck(row.name, quote("overhead", stated[0]), Quote(text, bound, "%"))


def combined_techniques(document: Document) -> Iterator[AuditCheck]:
    """Checks that all techniques together gain no less than the best single technique."""
    for table in document.techniques:
        together = [t for t in table if _is_combination(t)]
        single = [t for t in table if not _is_combination(t)]
        for whole in together:
            best = max(single, key=lambda t: t.speedup.span.value, default=None)
            if best is None:
                continue
            bound = Span(best.speedup.span.low, best.speedup.span.value, float("inf"))
            text = f"{best.name} alone {cited(best.speedup)}, so at least"
            stated = Quote(f"{words('speedup')} {cited(whole.speedup)}", whole.speedup.span)
            yield AuditCheck(whole.name, stated, Quote(text, bound, "x"))


def _is_combination(technique: Technique) -> bool:
    return any(word in technique.name.split() for word in ("combined", "together", "all"))


def _in_tables(document: Document, ranks: int, name: str) -> list[StatedFigure]:
    return [
        row.figures[name]
        for series in document.series
        for row in series.rows
        if row.ranks == ranks and name in row.figures
    ]
