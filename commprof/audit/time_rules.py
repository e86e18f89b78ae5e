"""Times that contain what they should not, and work that is not the same."""

from __future__ import annotations

from collections.abc import Iterator

from commprof.audit.checks import Check, Quote, check, cited, quote
from commprof.audit.document import Document, Row
from commprof.audit.figure import Figure, Span, exact
from commprof.audit.throughput_rules import has

#: A first epoch that took longer than the later ones by more than this was warming up.
_WARMUP = 1.25
#: Parts of commprof's own mean step.
_PARTS = ("data_ms", "forward_ms", "backward_ms", "exposed_ms", "optimizer_ms", "other_ms")


def warmup_inside(document: Document) -> Iterator[Check]:
    """The first epoch took no longer than the later ones, or is in neither total nor mean."""
    for row in _rows(document):
        times = row.epoch_times
        if len(times) < 2:
            continue
        later = _sum(times[1:]) / exact(len(times) - 1)
        inside = _first_is_in(row, later)
        if not inside:
            continue
        text = f"the mean of the later epochs ({', '.join(cited(t) for t in times[1:])}), about"
        bound = Span(0.0, later.value, later.high * _WARMUP)
        stated = Quote(f"first epoch {cited(times[0])}, inside {inside}", times[0].span)
        yield Check(row.name, stated, Quote(text, bound, "s"))


def ranks_in_turn(document: Document) -> Iterator[Check]:
    """The elapsed time is not the sum of the ranks' times: then they ran one after another."""
    for row in _rows(document):
        if len(row.rank_times) < 2 or not has(row, "elapsed"):
            continue
        elapsed, slowest = row.figures["elapsed"], max(f.span.value for f in row.rank_times)
        if elapsed.span.meets(_sum(row.rank_times)):
            shown = " + ".join(figure.text for figure in row.rank_times)
            text = f"the sum of the ranks' times, {shown}, while the slowest alone took"
            yield Check(row.name, quote("elapsed", elapsed), Quote(text, exact(slowest), "s"))


def slowest_rank(document: Document) -> Iterator[Check]:
    """The time of all ranks is not below that of one of them."""
    for row in _rows(document):
        if row.rank_times and has(row, "duration"):
            slowest = max((f for f in row.rank_times), key=lambda figure: figure.span.value)
            bound = Span(slowest.span.low, slowest.span.value, float("inf"))
            text = f"at least the slowest rank's {cited(slowest)}"
            yield Check(row.name, quote("duration", row.figures["duration"]), Quote(text, bound))


def epochs_of_total(document: Document) -> Iterator[Check]:
    """The total time is the number of epochs times the time of one."""
    for row in _rows(document):
        if not has(row, "duration", "epoch_s"):
            continue
        one = row.figures["epoch_s"]
        quantity = row.quantities.get("duration")
        named = exact(quantity.per_epochs) if quantity and quantity.per_epochs else None
        stated = row.figures.get("epochs") or document.fact("epochs")
        count = named or (stated.span if stated else None)
        if count is not None:
            text = f"{count.value:g} epochs x {cited(one)}"
            yield check(row, "duration", text, count * one.span, "s")


def changing_work(document: Document) -> Iterator[Check]:
    """Rows that a speed-up or efficiency compares keep the batch per rank, or the global one."""
    for series in document.series:
        rows = [row for row in series.rows if row.ranks and has(row, _batch_of(row))]
        if len(rows) < 2 or not any(has(row, "efficiency") or has(row, "speedup") for row in rows):
            continue
        batches = {row.ranks: row.figures[_batch_of(row)].span.value for row in rows}
        first = rows[0]
        if len({b * n for n, b in batches.items()}) == 1 or has(first, "global_batch"):
            continue  # strong scaling
        if not has(first, "rank_batch") and len({b / n for n, b in batches.items()}) == 1:
            continue  # weak scaling, by the global batch
        for row in rows[1:]:
            name = _batch_of(row)
            kept = first.figures[_batch_of(first)]
            implied = Quote(f"batch {cited(kept)} at {first.name}", kept.span)
            yield Check(row.name, quote(name, row.figures[name]), implied)


def parts_of_step(document: Document) -> Iterator[Check]:
    """The parts of the mean step add up to it."""
    for row in _rows(document):
        if not {*_PARTS, "step_ms"} <= row.parts.keys():
            continue
        whole = row.parts["step_ms"]
        stated = Quote(f"step {cited(whole)}", whole.span)
        yield Check(row.name, stated, Quote("the sum of its parts =", _sum_of(row), "s"))


def _first_is_in(row: Row, later: Span) -> str:
    """Which figure the first epoch's time is part of, in words; empty for none.

    later: mean of the epochs behind it. A stated time per epoch that may be that has left it out.
    """
    total = _sum(row.epoch_times)
    if has(row, "duration") and row.figures["duration"].span.meets(total):
        return "the total"
    if not has(row, "epoch_s") or row.figures["epoch_s"].span.meets(later):
        return ""
    mean = total / exact(len(row.epoch_times))
    stated = row.figures["epoch_s"]
    return f"the time per epoch {cited(stated)}" if stated.span.meets(mean) else ""


def _batch_of(row: Row) -> str:
    return "rank_batch" if has(row, "rank_batch") else "batch"


def _rows(document: Document) -> Iterator[Row]:
    return (row for series in document.series for row in series.rows)


def _sum_of(row: Row) -> Span:
    return _sum(tuple(row.parts[name] for name in _PARTS))


def _sum(figures: tuple[Figure, ...]) -> Span:
    total = figures[0].span
    for figure in figures[1:]:
        total = total + figure.span
    return total
