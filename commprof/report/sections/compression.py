"""Table of the buckets that a compressor exchanged at one world size."""

from __future__ import annotations

import math

from commprof.analysis.collectives.compression import CompressionRow
from commprof.analysis.world import WorldResult
from commprof.report.tabulated import Grid, not_shown, tabulated, three_digits
from commprof.text import plain_digits, printable

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
_QUALITY = 4  # the last columns


def compression_section(world: WorldResult, most_rows: int = 16, tables: int | None = None) -> str:
    """Renders heading, table, and the number of rows left out.

    Args:
        world: figures of one world size.
        most_rows: largest number of rows in the table.
        tables: number of characters; a wider table is split. None leaves the table whole.
    """
    ranks = "1 rank" if world.world_size == 1 else f"{world.world_size} ranks"
    table = tabulated(*compression_grid(world, most_rows), width=tables)
    lines = [f"Compressed buckets of {ranks}:", table]
    return "\n".join([*lines, *notes(world, most_rows)])


def notes(world: WorldResult, most_rows: int) -> list[str]:
    """Returns the number of rows left out of the table."""
    return not_shown(len(world.communication.compression) - most_rows, "bucket")


def compression_grid(world: WorldResult, most_rows: int) -> Grid:
    """Makes a table with a row per scheme and bucket, with errors if they were measured."""
    shown = world.communication.compression[:most_rows]
    measured = any(not math.isnan(row.relative_error) for row in shown)
    width = len(_HEADERS) if measured else len(_HEADERS) - _QUALITY
    return Grid([_cells(row)[:width] for row in shown], _HEADERS[:width], [0])


def _cells(row: CompressionRow) -> tuple[str, ...]:
    times = (row.queue_ms, row.encode_ms, row.exchange_ms, row.reduce_ms, row.decode_ms)
    return (
        printable(row.scheme),
        str(row.bucket),
        plain_digits(row.gradient_bytes / 1e6),
        *map(three_digits, times),
        three_digits(row.done_ms),
        three_digits(row.wire_bytes / 1e6),
        "-" if math.isnan(row.ratio) else f"{row.ratio:.1f}x",
        three_digits(row.relative_error),
        "-" if math.isnan(row.cosine) else f"{row.cosine:.4f}",
        three_digits(row.residual_ratio),
        "-" if math.isnan(row.zeroed) else f"{row.zeroed:.1%}",
    )
