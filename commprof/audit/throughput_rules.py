"""Rules for throughput, times, epochs and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commprof.audit.checks import AuditCheck, Quote, best_reading, check, cited, quote
from commprof.audit.document import Document, Row, Series
from commprof.audit.figure import Span, StatedFigure, exact

#: Description of an amount of work, and the number of samples in it.
Work = tuple[str, Span]


def from_latency(document: Document) -> Iterator[AuditCheck]:
    """Checks that throughput is global batch divided by time per iteration."""
    for series in document.series:
        rows = [row for row in series.rows if row.ranks and has(row, "throughput", "latency")]
        yield from best_reading(
            [
                [c for row in rows if (c := _from_latency(row, document, per_rank, accumulated))]
                for accumulated in (False, True)
                for per_rank in (True, False)
            ]
        )


def from_work(document: Document) -> Iterator[AuditCheck]:
    """Checks that throughput is the number of processed samples divided by the duration."""
    for series in document.series:
        works = works_of(series, document)
        for row in series.rows:
            if row.ranks in works and has(row, "throughput"):
                text, samples = works[row.ranks]
                time = row.figures["duration"]
                text = f"{text} / {cited(time)}"
                yield check(row, "throughput", text, samples / time.span, "samples/s")


def works_of(series: Series, document: Document) -> dict[int, Work]:
    """Returns the number of samples that were processed in the measured time, by world size.

    A batch may be for one rank or for all ranks, and samples may be for one epoch or for all
    epochs. The interpretation that agrees with most rows is used.
    """
    rows = [row for row in series.rows if row.ranks and has(row, "duration")]
    batches = [
        {row.ranks: work for row in rows if (work := _batches(row, document, per_rank))}
        for per_rank in (True, False)
    ]
    samples = [
        {row.ranks: work for row in rows if (work := _samples(row, document, per_epoch))}
        for per_epoch in (False, True)
    ]
    readings = batches if any(batches) else samples
    return max(readings, key=lambda works: _agreeing(rows, works))


def has(row: Row, *names: str) -> bool:
    """True if the row states all of these quantities."""
    return all(name in row.figures for name in names)


def global_batch(row: Row, document: Document, per_rank: bool) -> Work | None:
    """Returns the samples of all ranks in one iteration; None if no batch is stated.

    per_rank: True if a plain "batch" is the batch of one rank, False if it is that of all ranks.
    """
    figure: StatedFigure | None
    for figure in (row.figures.get("rank_batch"), document.fact("rank_batch")):
        if figure is not None and not has(row, "global_batch"):
            return f"batch {cited(figure)} x {row.name}", figure.span * exact(row.ranks)
    figure = row.figures.get("global_batch")
    if figure is None and not has(row, "batch"):
        figure = document.fact("global_batch")
    if figure is not None:
        return f"global batch {cited(figure)}", figure.span
    figure = row.figures.get("batch") or document.fact("batch")
    if figure is None:
        return None
    if per_rank:
        return f"batch {cited(figure)} x {row.name}", figure.span * exact(row.ranks)
    return f"batch {cited(figure)}", figure.span


def _agreeing(rows: Sequence[Row], works: dict[int, Work]) -> int:
    return sum(
        row.figures["throughput"].span.meets(works[row.ranks][1] / row.figures["duration"].span)
        for row in rows
        if row.ranks in works and has(row, "throughput")
    )


def _from_latency(
    row: Row, document: Document, per_rank: bool, accumulated: bool
) -> AuditCheck | None:
    batch = global_batch(row, document, per_rank)
    times = row.figures.get("accumulation") or document.fact("accumulation")
    if batch is None or (accumulated and times is None):
        return None
    text, samples = batch
    if accumulated and times is not None:
        text, samples = f"{text} x {cited(times)} accumulated", samples * times.span
    latency = row.figures["latency"]
    text = f"{text} / {cited(latency)}"
    return check(row, "throughput", text, samples / latency.span, "samples/s")


def _batches(row: Row, document: Document, per_rank: bool) -> Work | None:
    batches, batch = row.figures.get("epoch_batches"), global_batch(row, document, per_rank)
    epochs = row.figures.get("epochs") or document.fact("epochs")
    if batches is None or batch is None or epochs is None:
        return None
    text, samples = batch
    whole = samples * batches.span * epochs.span
    return f"{cited(batches)} batches x {text} x {cited(epochs)} epochs", whole


def _samples(row: Row, document: Document, per_epoch: bool) -> Work | None:
    quantity = row.quantities.get("duration")
    if quantity is not None and quantity.per_samples:
        return f"{quantity.per_samples:,.0f} samples", exact(quantity.per_samples)
    if row.rank_samples:
        total = row.rank_samples[0].span
        for samples in row.rank_samples[1:]:
            total = total + samples.span
        text = "samples of all ranks"
    elif (given := row.figures.get("samples")) is not None:
        text, total = f"{cited(given)} samples", given.span
    elif (given := row.figures.get("rank_samples")) is not None:
        text, total = f"{cited(given)} samples x {row.name}", given.span * exact(row.ranks)
    else:
        return None
    epochs = row.figures.get("epochs") or document.fact("epochs")
    if not per_epoch or epochs is None:
        return text, total
    return f"{text} x {cited(epochs)} epochs", total * epochs.span


#: A first epoch includes warm-up if it took more than this times the mean of the later epochs.
_WARMUP = 1.25
#: Parts of the mean step in a result of commprof.
_PARTS = ("data_ms", "forward_ms", "backward_ms", "exposed_ms", "optimizer_ms", "other_ms")


def warmup_inside(document: Document) -> Iterator[AuditCheck]:
    """Checks that the total and the mean leave out a first epoch that includes warm-up."""
    for row in _rows(document):
        times = row.epoch_times
        if len(times) < 2:
            continue
        later = _sum(times[1:]) / exact(len(times) - 1)
        inside = _first_is_in(row, later)
        if not inside:
            continue
        # A finding prints the mean after this text.
        text = f"the mean of the later epochs ({', '.join(cited(t) for t in times[1:])}), about"
        bound = Span(0.0, later.value, later.high * _WARMUP)
        stated = Quote(f"first epoch {cited(times[0])}, included in {inside}", times[0].span)
        yield AuditCheck(row.name, stated, Quote(text, bound, "s"))


def ranks_in_turn(document: Document) -> Iterator[AuditCheck]:
    """Checks that the elapsed time is not the sum of the ranks' times."""
    for row in _rows(document):
        if len(row.rank_times) < 2 or not has(row, "elapsed"):
            continue
        elapsed, slowest = row.figures["elapsed"], max(f.span.value for f in row.rank_times)
        if elapsed.span.meets(_sum(row.rank_times)):
            shown = " + ".join(figure.text for figure in row.rank_times)
            # A finding prints the slowest rank's time after this text.
            text = f"the sum of the ranks' times, {shown}, while the slowest rank alone took"
            yield AuditCheck(row.name, quote("elapsed", elapsed), Quote(text, exact(slowest), "s"))


def slowest_rank(document: Document) -> Iterator[AuditCheck]:
    """Checks that the duration stated for the whole run is at least the slowest rank's time."""
    for row in _rows(document):
        if row.rank_times and has(row, "duration"):
            slowest = max((f for f in row.rank_times), key=lambda figure: figure.span.value)
            bound = Span(slowest.span.low, slowest.span.value, float("inf"))
            text = f"at least the slowest rank's {cited(slowest)}"
            yield AuditCheck(
                row.name, quote("duration", row.figures["duration"]), Quote(text, bound)
            )


def epochs_of_total(document: Document) -> Iterator[AuditCheck]:
    """Checks that the total time is the number of epochs times the time per epoch."""
    for row in _rows(document):
        if not has(row, "duration", "epoch_s"):
            continue
        epoch = row.figures["epoch_s"]
        quantity = row.quantities.get("duration")
        named = exact(quantity.per_epochs) if quantity and quantity.per_epochs else None
        stated = row.figures.get("epochs") or document.fact("epochs")
        count = named or (stated.span if stated else None)
        if count is not None:
            text = f"{count.value:g} epochs x {cited(epoch)}"
            yield check(row, "duration", text, count * epoch.span, "s")


def changing_work(document: Document) -> Iterator[AuditCheck]:
    """Checks that the batch per rank or the global batch is the same in all rows of a series.

    Only series that state a speed-up or an efficiency are checked, unless their first row states
    the global batch.
    """
    for series in document.series:
        rows = [row for row in series.rows if row.ranks and has(row, _batch_of(row))]
        if len(rows) < 2 or not any(has(row, "efficiency") or has(row, "speedup") for row in rows):
            continue
        batches = {row.ranks: row.figures[_batch_of(row)].span.value for row in rows}
        first = rows[0]
        if len({b * n for n, b in batches.items()}) == 1 or has(first, "global_batch"):
            continue  # strong scaling
        if not has(first, "rank_batch") and len({b / n for n, b in batches.items()}) == 1:
            continue  # weak scaling: the global batch grows with the number of ranks
        for row in rows[1:]:
            name = _batch_of(row)
            first_batch = first.figures[_batch_of(first)]
            implied = Quote(f"batch {cited(first_batch)} at {first.name}", first_batch.span)
            yield AuditCheck(row.name, quote(name, row.figures[name]), implied)


def parts_of_step(document: Document) -> Iterator[AuditCheck]:
    """Checks that the parts of the mean step add up to the step."""
    for row in _rows(document):
        if not {*_PARTS, "step_ms"} <= row.parts.keys():
            continue
        whole = row.parts["step_ms"]
        stated = Quote(f"step {cited(whole)}", whole.span)
        yield AuditCheck(row.name, stated, Quote("the sum of its parts =", _sum_of(row), "s"))


def _first_is_in(row: Row, later: Span) -> str:
    """Returns the name of the figure that includes the first epoch's time; empty if none does.

    ``later`` is the mean time of the later epochs.
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


def _sum(figures: tuple[StatedFigure, ...]) -> Span:
    total = figures[0].span
    for figure in figures[1:]:
        total = total + figure.span
    return total
