"""Table of the collectives of one world size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from commprof.analysis.collectives.kinds import CollectiveKind, CollectiveRow, SteplessCollectives
from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, not_shown, three_digits
from commprof.text import plain_digits, printable, rank_list

LEGEND = """\
Times in ms: median over calls and ranks. total: issue to completion. Each call's total is queue +
wait + transfer, but the medians need not add up. queue: issue to start; wait: start to the last
rank's start; transfer: from then to completion. exposed: time for which calls held up training,
mean per step and rank. size, algbw and busbw: as in nccl-tests, for the time from the last rank's
start to the last completion; 1 GB is 1e9 bytes."""

GROUPS_LEGEND = "Groups are shown with their number of ranks, or with the ranks in braces."
_MESH = "mesh_"
_LONGEST_RANKS = 20

#: Results that have a table of collectives.
Shown = WorldResult | SteplessCollectives
#: A phase that has at least this fraction of a row's calls is named without the fraction.
_NEARLY_ALL = 0.995
#: If more than this fraction of the exposed time is in no row, a note says so.
_WORTH_A_LINE = 0.02

_CALLS = "calls\n/step"
_HEADERS = (
    "operation",
    "group\n(ranks)",
    "type",
    "size\nMB",
    _CALLS,
    "failed",
    "phase",
    "total\nmedian",
    "\np95",
    "=\nqueue",
    "+\nwait",
    "+ trans-\nfer",
    "exposed",
    "algbw\nGB/s",
    "busbw\nGB/s",
)
_GROUP, _FAILED = _HEADERS.index("group\n(ranks)"), _HEADERS.index("failed")
_LEFT = ("operation", "group\n(ranks)", "type", "phase")


def title_of(world: Shown) -> str:
    """Returns the heading of the table of collectives."""
    ranks = "1 rank" if world.world_size == 1 else f"{world.world_size} ranks"
    if isinstance(world, SteplessCollectives):
        unknown = all(math.isnan(row.times.exposed_ms) for row in world.rows)
        order = "time in flight" if unknown else "exposed time per rank"
        return f"Collectives of {ranks} in a job without steps, sorted by {order}"
    return f"Collectives of {ranks}, sorted by exposed time"


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the collectives of the largest world size, if there are any."""
    worlds = report.result.worlds
    if worlds and worlds[-1].communication.collectives:
        yield section("collectives", worlds[-1], medium)


def of_stepless(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields a section per world size of a job without steps."""
    for world in report.result.stepless:
        yield section(f"collectives-{world.world_size}", world, medium)


def section(place: str, world: Shown, medium: Medium) -> Section:
    """Makes the section on the collectives of one world size.

    Args:
        place: the section's id.
        world: figures of one world size.
        medium: kind of output for which the section is made.
    """
    most = medium.most_rows
    callers = [line for row in _rows_of(world)[:most] for line in _callers(row, medium.width)]
    return Section(
        place,
        "Collectives",
        captioned=True,
        grids=((title_of(world), collectives_grid(world, most)),),
        bullets=tuple(notes(world, most)),
        preformatted=("\n".join(callers),) if callers else (),
        legend=LEGEND,
    )


def notes(world: Shown, most_rows: int) -> list[str]:
    """Returns notes on the table, such as the number of rows left out."""
    rows = _rows_of(world)
    shown = (_group(row.kind, world.world_size) for row in rows[:most_rows])
    listed = [GROUPS_LEGEND] if any("{" in group for group in shown) else []
    return [
        *not_shown(len(rows) - most_rows, "kind", " of call"),
        *listed,
        *(unlisted(world) if isinstance(world, WorldResult) else []),
    ]


def _rows_of(world: Shown) -> tuple[CollectiveRow, ...]:
    return world.communication.collectives if isinstance(world, WorldResult) else world.rows


def unlisted(world: WorldResult) -> list[str]:
    """Returns a note on the exposed time that is in no row of the table.

    There is no note if this time is negligible, or if the rows describe only a sample of the steps.
    """
    if world.recording.sampled_steps:
        return []
    exposed, rest = world.parts.exposed_ms, world.unlisted_exposed_ms
    if not rest > _WORTH_A_LINE * exposed:
        return []
    return [
        f"Exposed time in no row: {three_digits(rest)} of {three_digits(exposed)} ms per step, in "
        "which the thread stood still although all its recorded collectives were complete (it "
        "waited for a core, or for an operation that was not recorded)."
    ]


def collectives_grid(world: Shown, most_rows: int) -> Grid:
    """Makes a table with a row per kind of call."""
    rows = [_cells(row, world.world_size) for row in _rows_of(world)[:most_rows]]
    headers = [*_HEADERS]
    if isinstance(world, SteplessCollectives):
        headers[_HEADERS.index(_CALLS)] = "calls\n/rank"
    for column in (_FAILED, _GROUP):  # from right to left, so that indices stay valid
        values = {row[column] for row in rows}
        # A column that gives no information is left out.
        if values == {"0"} if column == _FAILED else len(values) == 1:
            rows = [(*row[:column], *row[column + 1 :]) for row in rows]
            del headers[column]
    left = [column for column, header in enumerate(headers) if header in _LEFT]
    return Grid(rows, headers, left)


def _cells(row: CollectiveRow, world_size: int) -> tuple[str, ...]:
    kind, times = row.kind, row.times
    parts = (times.duration, times.queue, times.wait, times.transfer)
    medians = [three_digits(spread.median_ms) for spread in parts]
    return (
        kind.op,
        printable(_group(kind, world_size)),
        printable(" ".join(filter(None, (kind.dtype, kind.reduce_op)))),
        _size(kind),
        three_digits(row.calls_per_step),
        str(row.failed),
        _phases(row),
        medians[0],
        three_digits(times.duration.p95_ms),
        *medians[1:],
        three_digits(times.exposed_ms),
        three_digits(times.algbw_gb_per_s),
        three_digits(times.busbw_gb_per_s),
    )


def _group(kind: CollectiveKind, world_size: int) -> str:
    name = kind.group_label or "-"
    if not kind.group_size:
        return name[:20]
    if name.startswith(_MESH):
        name = f"mesh {name.removeprefix(_MESH)}"
    listed = rank_list(kind.group_ranks)
    known = len(kind.group_ranks) == kind.group_size < world_size and len(listed) <= _LONGEST_RANKS
    return f"{name[:20]} {{{listed}}}" if known else f"{name[:20]} ({kind.group_size})"


def _size(kind: CollectiveKind) -> str:
    low, high = (plain_digits(size / 1e6) if kind.sizes_known else "-" for size in kind.size_bytes)
    return low if low == high else f"{low}-{high}"


def _phases(row: CollectiveRow) -> str:
    name, calls = row.phases[0]
    share = calls / row.calls
    return name if share >= _NEARLY_ALL else f"{name} {share:.0%}"


def _callers(row: CollectiveRow, width: int) -> list[str]:
    if not row.callers:
        return []
    text, calls = row.callers[0]
    rest = len(row.callers) - 1
    also = f"; other calls from {rest} more {'line' if rest == 1 else 'lines'}" if rest else ""
    what = f"{row.kind.op} of {_size(row.kind)} MB"
    line = f"{what}: {calls} of {row.calls} calls from {printable(text)}{also}"
    return textwrap.wrap(
        line, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False
    )
