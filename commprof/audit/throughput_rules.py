"""Throughput, from everything else that tells how much was done in what time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commprof.audit.checks import Check, best_reading, check, cited
from commprof.audit.document import Document, Row, Series
from commprof.audit.figure import Figure, Span, exact

#: A number of samples, and in words how it is counted.
Work = tuple[str, Span]


def from_latency(document: Document) -> Iterator[Check]:
    """Throughput is global batch over time per iteration."""
    for series in document.series:
        rows = [row for row in series.rows if row.ranks and has(row, "throughput", "latency")]
        yield from best_reading(
            [
                [c for row in rows if (c := _from_latency(row, document, per_rank, accumulated))]
                for accumulated in (False, True)
                for per_rank in (True, False)
            ]
        )


def from_work(document: Document) -> Iterator[Check]:
    """Throughput is all samples over the time that they took."""
    for series in document.series:
        works = works_of(series, document)
        for row in series.rows:
            if row.ranks in works and has(row, "throughput"):
                text, samples = works[row.ranks]
                time = row.figures["duration"]
                text = f"{text} / {cited(time)}"
                yield check(row, "throughput", text, samples / time.span, "samples/s")


def works_of(series: Series, document: Document) -> dict[int, Work]:
    """By world size all samples of the measured time.

    Batches say it best; without them the samples that a row states. What these headers leave
    open, per rank or in all, per epoch or in all, is taken as most rows agree with.
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
    """Whether the row states all of these."""
    return all(name in row.figures for name in names)


def global_batch(row: Row, document: Document, per_rank: bool) -> Work | None:
    """Samples of one iteration of all ranks.

    per_rank: what a batch of which nothing is said is taken for.
    """
    found: Figure | None
    for found in (row.figures.get("rank_batch"), document.fact("rank_batch")):
        if found is not None and not has(row, "global_batch"):
            return f"batch {cited(found)} x {row.name}", found.span * exact(row.ranks)
    found = row.figures.get("global_batch")
    if found is None and not has(row, "batch"):
        found = document.fact("global_batch")
    if found is not None:
        return f"global batch {cited(found)}", found.span
    found = row.figures.get("batch") or document.fact("batch")
    if found is None:
        return None
    if per_rank:
        return f"batch {cited(found)} x {row.name}", found.span * exact(row.ranks)
    return f"batch {cited(found)}", found.span


def _agreeing(rows: Sequence[Row], works: dict[int, Work]) -> int:
    return sum(
        row.figures["throughput"].span.meets(works[row.ranks][1] / row.figures["duration"].span)
        for row in rows
        if row.ranks in works and has(row, "throughput")
    )


def _from_latency(row: Row, document: Document, per_rank: bool, accumulated: bool) -> Check | None:
    """With accumulation, an iteration may be one batch, or all that go into an update."""
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
        for each in row.rank_samples[1:]:
            total = total + each.span
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
