"""Table of the buckets that a compressor exchanged at one world size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commprof.analysis.collectives.compression import CompressionRow
from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, not_shown, three_digits
from commprof.text import counted, plain_digits, printable

LEGEND = """\
Times in ms, medians over calls and ranks. queue: the bucket was ready, but the compressor's thread
was busy with an earlier bucket; exchange overlaps encode, reduce and decode if a bucket is sent in
pieces; ready to done: from the bucket's last gradient until its averaged gradients are ready. sent:
by one rank to the others; less: bytes of an fp32 ring all-reduce divided by the sent bytes. error,
cosine: of the sent values compared with the values that were to be sent; residual: L2 norm of the
part kept for the next step, divided by the gradient's norm; zeroed: fraction of the bucket's values
that became 0. The columns from error to zeroed are measured only with the compressor's option
measure_every."""

_HEADERS = (
    *("scheme", "bucket", "size\nMB", "queue", "encode", "exchange", "reduce", "decode"),
    *("ready\nto done", "sent\nMB", "less", "error", "cosine", "residual", "zeroed"),
)
_QUALITY = 4  # the last 4 columns show errors


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the compressed buckets of the largest world size, if there are any."""
    worlds, most = report.result.worlds, medium.most_rows
    if not worlds or not worlds[-1].communication.compression:
        return
    caption = f"Compressed buckets of {counted(worlds[-1].world_size, 'rank')}"
    yield Section(
        "compression",
        "Gradient compression",
        captioned=True,
        grids=((caption, compression_grid(worlds[-1], most)),),
        bullets=tuple(not_shown(len(worlds[-1].communication.compression) - most, "bucket")),
        legend=LEGEND,
    )


def compression_grid(world: WorldResult, most_rows: int) -> Grid:
    """Makes a table with a row per scheme and bucket, with errors if they were measured."""
    shown = world.communication.compression[:most_rows]
    measured = any(not math.isnan(row.errors.relative_error) for row in shown)
    width = len(_HEADERS) if measured else len(_HEADERS) - _QUALITY
    return Grid([_cells(row)[:width] for row in shown], _HEADERS[:width], [0])


def _cells(row: CompressionRow) -> tuple[str, ...]:
    times, sent, errors = row.times, row.sent, row.errors
    stages = (times.queue_ms, times.encode_ms, times.exchange_ms, times.reduce_ms, times.decode_ms)
    return (
        printable(row.scheme),
        str(row.bucket),
        plain_digits(row.gradient_bytes / 1e6),
        *map(three_digits, stages),
        three_digits(times.done_ms),
        three_digits(sent.wire_bytes / 1e6),
        "-" if math.isnan(sent.ratio) else f"{sent.ratio:.1f}x",
        three_digits(errors.relative_error),
        "-" if math.isnan(errors.cosine) else f"{errors.cosine:.4f}",
        three_digits(errors.residual_ratio),
        "-" if math.isnan(errors.zeroed) else f"{errors.zeroed:.1%}",
    )
