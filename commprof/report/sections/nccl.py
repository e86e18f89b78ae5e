"""Tables of the records of NCCL's profiler plugin: operations, and links between ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commprof.analysis.collectives.nccl import NcclLink, NcclRow, NcclWorld, Split
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, not_shown, three_digits
from commprof.text import counted, plain_digits, printable

TITLE = "Inside NCCL"
_MOST_ROWS = 12

LEGEND = """\
Operations that NCCL carried out, by communicator, algorithm and protocol; size as in NCCL's call.
replays: operations that a CUDA graph repeated. from: phase of the calls, or of their capture into a
CUDA graph, and the DDP buckets; empty for calls that did not come through torch.distributed.
kernel: median time from the first channel's begin to the last channel's end; spread: from the first
to the last channel's begin, and from the first to the last channel's end. wait: mean, computed once
from the shortest kernel of all ranks, and once from clocks; transfer: mean of the shortest kernels.
Times in ms. MB is 1e6 bytes."""
SPLIT_LEGEND = """\
network, peer, GPU: parts of the mean transfer of one channel to one rank, in ms: the network was
sending, the peer had no buffer to offer, or the sending GPU had not filled one. slower: time for a
byte in the network, divided by that of the communicator's median link."""

_HEADERS = (
    *("operation", "communi-\ncator", "size\nMB", "algo-\nrithm", "proto-\ncol", "chan-\nnels"),
    *(
        "number\n(replays)",
        "in\nsteps",
        "from",
        "kernel",
        "spread\nbegin",
        "\nend",
        "wait by\nkernels",
    ),
    *("\nclocks", "trans-\nfer"),
)
_SPLIT = ("network", "peer", "GPU")


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields sections on the operations and the links of each world size that was recorded."""
    for world in report.result.nccl:
        ranks = counted(world.world_size, "rank")
        yield Section(
            f"nccl-{world.world_size}",
            TITLE,
            heading=f"{TITLE}, {ranks}",
            grids=((f"Operations of {ranks}", operations(world)),),
            bullets=tuple(notes(world)),
            legend=LEGEND,
        )
        if world.links:
            yield Section(
                f"nccl-links-{world.world_size}",
                "Links of NCCL",
                heading=f"{TITLE}, {ranks}, by link",
                grids=(("Sends by NCCL's proxy", links(world)),),
                bullets=tuple(link_notes(world)),
                legend=SPLIT_LEGEND,
            )


def operations(world: NcclWorld) -> Grid:
    """Makes a table with a row per kind of operation."""
    split = any(row.split is not None for row in world.rows)
    rows = [_cells(row, split) for row in world.rows[:_MOST_ROWS]]
    return Grid(rows, (*_HEADERS, *(_SPLIT if split else ())), (0, 1, 3, 4, 8))


def links(world: NcclWorld) -> Grid:
    """Makes a table with a row per link, the slowest first."""
    rows = [
        (
            *(printable(text) for text in (link.communicator, link.from_rank, link.to_rank)),
            str(link.transfers),
            plain_digits(link.total_bytes / 1e6),
            *_parts(link.split),
            three_digits(link.gb_per_s),
            "-" if math.isnan(link.slower) else f"{plain_digits(link.slower)}x",
        )
        for link in world.links[:_MOST_ROWS]
    ]
    headers = ("communicator", "from\nrank", "\nto", "transfers", "MB", *_SPLIT, "GB/s", "slower")
    return Grid(rows, headers, (0,))


def notes(world: NcclWorld) -> list[str]:
    """Returns sentences on rows that the table leaves out, and on the two ways to compute waits."""
    return [*not_shown(len(world.rows) - _MOST_ROWS, "kind", " of operation"), *_waits(world)]


def link_notes(world: NcclWorld) -> list[str]:
    """Returns sentences on the slow links, and on transfers for other processes."""
    return [
        *not_shown(len(world.links) - _MOST_ROWS, "link"),
        *(_slow(link) for link in world.links if link.slow),
        *(
            [f"Transfers for other processes of the host (PXN), in no row: {world.for_others}."]
            if world.for_others
            else []
        ),
    ]


def _waits(world: NcclWorld) -> Iterator[str]:
    both = world.waits
    if both is not None:
        yield (
            f"Waits by the shortest kernel and by clocks differ by a median of "
            f"{three_digits(both.difference_ms)} ms, and name the same last rank in "
            f"{both.same_last} of {counted(both.collectives, 'collective')}."
        )


def _slow(link: NcclLink) -> str:
    return printable(
        f"The link from rank {link.from_rank} to rank {link.to_rank} is slow: a byte takes "
        f"{plain_digits(link.slower)} times as long as on the median link of {link.communicator}."
    )


def _cells(row: NcclRow, split: bool) -> tuple[str, ...]:
    kind, times = row.kind, row.times
    size = f" ({kind.size})" if kind.size else ""
    replays = f" ({row.replayed})" if row.replayed else ""
    return (
        kind.op,
        printable(f"{kind.communicator[:20]}{size}"),
        _range(*(plain_digits(size / 1e6) for size in kind.size_bytes)),
        printable(kind.algorithm) or "-",
        printable(kind.protocol) or "-",
        _range(*map(str, kind.channels)),
        f"{row.operations}{replays}",
        str(row.steps) if row.steps else "-",
        _from(row),
        three_digits(times.duration_ms),
        three_digits(times.begin_spread_ms),
        three_digits(times.end_spread_ms),
        three_digits(times.wait_by_kernels_ms),
        three_digits(times.wait_by_clocks_ms),
        three_digits(times.transfer_ms),
        *(_parts(row.split) if split else ()),
    )


def _from(row: NcclRow) -> str:
    phases = ", ".join(name for name, _ in row.phases[:2])
    if not row.buckets:
        return phases
    return f"{phases} bucket {_range(*map(str, (row.buckets[0], row.buckets[-1])))}"


def _parts(split: Split | None) -> tuple[str, ...]:
    if split is None:
        return ("-",) * 3
    return tuple(three_digits(value) for value in (split.network_ms, split.peer_ms, split.gpu_ms))


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"
