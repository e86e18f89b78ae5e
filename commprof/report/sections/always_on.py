"""Tables and caveats of the summaries of always-on mode."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from commprof.analysis.findings import dropped_records
from commprof.analysis.late.late_words import cost_in_all, with_cost
from commprof.analysis.step.exposure import HOST_PAUSE
from commprof.analysis.summary_result import OperationRow, Quantiles, SummaryResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.sections.cross_checks import as_lines
from commprof.report.tabulated import Grid, not_shown, three_digits
from commprof.text import counted, named_ranks, printable

_LEGEND = """\
From the histograms of always-on mode, over all ranks, without each rank's first step. Times in ms.
The parts of the step and their sum are exact means; median, p50, p95 and p99 are within 1 %.
exposed: the training thread waited for communication; wait: the part of exposed before all ranks on
which the operation depends have issued the operation; transfer: the part after that. wait and
transfer: means over the steps in which wait and transfer are known."""

_OPERATIONS_LEGEND = """\
count: calls issued on all ranks. duration: from issue to completion. blocked: waits of 1 us or more
in Work.wait; DDP waits in its finalisation instead: that waiting counts as exposed, not as blocked.
size: bytes of the message. not completed: no completion was seen. early: from a rank's issue until
all ranks that it needs have issued (the root of a broadcast, the other end of a message); transfer:
from then to completion. early and transfer cover the calls for which the time of the last issue is
known. algbw: mean size, as nccl-tests counts it, divided by the mean transfer, which includes
gloo's queue; busbw: algbw times the bus factor of nccl-tests; 1 GB is 1e9 bytes."""

_CHECKS_HEADING = """\
Cross-checks: always-on mode's figure compared with another measurement of the same run. DDP's log
holds means over the iterations that it sampled, warm-up included."""

_LAST_LEGEND = """\
A rank's call cannot complete before certain ranks have issued the operation: the calling rank and,
for example, the other ranks of the group, or the root of a broadcast. last: share of calls for
which the row's rank was the last of these ranks; calls with an unknown last rank do not count.
cost: time from the calling rank's issue to the issue by the row's rank, summed over the calls for
which the row's rank was last. Operations can overlap, so the sum can exceed the elapsed time."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the sections on the summaries of always-on mode, if ranks wrote any."""
    summaries = report.result.summaries
    if not summaries:
        return
    grids = (("Mean step in ms, by number of ranks", parts_grid(summaries)),)
    yield Section("always-on", "Always-on mode", grids=grids, legend=_LEGEND)
    operations = tuple(_operations(summary) for summary in summaries if summary.operations)
    if operations:
        place, title = "always-on-operations", "Operations in always-on mode"
        yield Section(place, title, captioned=True, grids=operations, legend=_OPERATIONS_LEGEND)
    yield from last_ranks(summaries)
    checks = [(summary.world_size, summary.cross_checks) for summary in summaries]
    yield from as_lines("always-on-checks", _CHECKS_HEADING, checks, medium)


def parts_grid(summaries: Sequence[SummaryResult]) -> Grid:
    """Makes a table of the parts of the mean step, with a row per world size."""
    return Grid([_parts_row(summary) for summary in summaries], _PARTS_HEADERS)


def _operations(summary: SummaryResult) -> tuple[str, Grid]:
    rows = [_operation_row(row) for row in summary.operations]
    caption = f"Operations at {_ranks(summary)} in {summary.covered_s:.1f} s"
    return caption, Grid(rows, _OPERATION_HEADERS)


def last_ranks(summaries: Sequence[SummaryResult]) -> Iterator[Section]:
    """Yields the section on the ranks that were last to issue operations, if there are any."""
    shown = [summary for summary in summaries if summary.world_size > 1 and summary.last]
    if shown:
        yield Section(
            "always-on-last",
            "Ranks that issued last",
            captioned=True,
            grids=tuple(map(_last, shown)),
            bullets=tuple(
                note
                for summary in shown
                for note in not_shown(
                    len(summary.last) - _LAST_ROWS, "rank", f" at {_ranks(summary)}"
                )
            ),
            legend=_LAST_LEGEND,
        )


def _last(summary: SummaryResult) -> tuple[str, Grid]:
    rows = [
        (row.rank, f"{row.share:.0%}", three_digits(row.cost_s))
        for row in summary.last[:_LAST_ROWS]
    ]
    caption = f"Ranks that issued last, at {_ranks(summary)}"
    return caption, Grid(rows, ("rank", "last", "cost s"))


def notes(
    summaries: Sequence[SummaryResult], shown: Collection[int], told: Collection[int]
) -> list[str]:
    """Returns the caveats of summaries, in sentences.

    Args:
        summaries: summaries of the run.
        shown: world sizes for which the report shows figures of steps.
        told: world sizes whose unreadable traces the report names elsewhere.
    """
    found = []
    for summary in summaries:
        where = f"Always-on, {_ranks(summary)}: "
        if summary.apart is not None and summary.world_size not in shown:
            found.append(where + summary.apart.sentence)
        missing = [rank for rank in range(summary.world_size) if rank not in summary.ranks]
        if missing:
            found.append(
                f"{where}no summary from {named_ranks(missing)}; figures are of the other ranks."
            )
        if summary.world_size not in told:
            found += [where + problem for problem in summary.problems]
        found += [where + sentence for sentence in _about_waiting(summary)]
        if summary.operations and not summary.timing.steps:
            some = " on at least one rank, so its" if summary.timing.step_ms > 0 else ", so"
            found.append(
                f"{where}no step after the first was seen{some} exposed time is not known. A step "
                "ends at the optimizer's step() or commprof.step(). If a loop calls neither in 20 "
                "backward passes that communicate, each such pass from the 20th on ends a step."
            )
        if summary.dropped_records:
            found.append(
                where
                + dropped_records(
                    summary.dropped_records, "counts and exposed time may be too small"
                )
            )
        if summary.moved:
            found.append(
                f"{where}{summary.moved} operations of rare groups and sizes are counted in the "
                "rows without a group, to keep the summary small."
            )
        if summary.unmatched:
            found.append(
                f"{where}{summary.unmatched} completions or waits belong to operations that were "
                "not seen, and are left out of all figures."
            )
    return found


def _about_waiting(summary: SummaryResult) -> list[str]:
    arrivals = summary.arrivals
    found = []
    late, slower = summary.late_rank, summary.slower_ranks
    if slower is not None:
        found.append(f"{slower.told}.")
    if late is not None:
        is_late = f"rank {late.rank} is late"
        found.append(
            f"{with_cost(is_late, late, late.wait_ms, summary.world_size)} It {cost_in_all(late)}; "
            f"its own work takes longer than that of the other ranks, and {late.phase_share:.0%} "
            f"of the excess {_lies_in(late.phase)}.{_passed_on(late.through)}"
        )
    if not math.isnan(arrivals.arrival_clock_error_us):
        found.append(
            "because of the error of the hosts' clocks, arrivals on other hosts are known to "
            f"within {arrivals.arrival_clock_error_p95_us:.0f} us for 95 % of the collectives and "
            f"{arrivals.arrival_clock_error_us:.0f} us for all; shorter waits mean nothing."
        )
    if arrivals.arrivals_partial:
        found.append(
            f"for {arrivals.arrivals_partial} of {arrivals.arrivals_known} collectives, the "
            "arrivals of ranks on other hosts were not seen: those hosts are dead, slow or cut "
            "off, or do not record. If one of these ranks came last, the wait for it counts as "
            "transfer."
        )
    if summary.world_size == 1 or not arrivals.arrivals_unknown:
        return found
    known = arrivals.arrivals_known + arrivals.arrivals_unknown
    found.append(
        f"the rank that came last is not known for {arrivals.arrivals_unknown} of {known} "
        "collectives, and the split into wait and transfer is not known for "
        f"{summary.timing.unsplit_steps} steps: {_why_unknown(summary)}."
    )
    return found


def _passed_on(through: Sequence[int]) -> str:
    if not through:
        return ""
    verb = "waits for it and is" if len(through) == 1 else "wait for it and are"
    passing = named_ranks(through)
    return f" Some ranks wait for it through {passing}, which {verb} therefore late too."


def _lies_in(origin: str) -> str:
    if origin == HOST_PAUSE:
        return "is time in which its process did not run (host pause)"
    return f"lies in its {origin} phase"


def _why_unknown(summary: SummaryResult) -> str:
    arrivals = summary.arrivals
    rest = arrivals.arrivals_unknown
    reasons = []
    for count, reason in (
        (
            arrivals.arrivals_without_place,
            "groups that did not fit into the memory that the ranks of a host share (at most 1,024 "
            "groups and 48 MiB)",
        ),
        (
            arrivals.arrivals_unlisted,
            "groups of more than 256 ranks on several hosts, and are of a kind in which a rank may "
            "be done before another one arrives",
        ),
    ):
        if count:
            reasons.append(f"{count} of these collectives belong to {reason}")
            rest -= count
    if reasons and rest:
        reasons.append(f"for the others, {_why_others(summary)}")
    return "; ".join(reasons) or _why_others(summary)


def _why_others(summary: SummaryResult) -> str:
    arrivals = summary.arrivals
    behind = (
        "a rank did not record, or was more than 5 s or 16,384 collectives (fewer in a job of many "
        "groups) behind another rank"
    )
    if not arrivals.arrivals_known and len(summary.ranks) < summary.world_size:
        return "a rank did not record in always-on mode; start capture on every rank"
    if arrivals.machines > 1 and not arrivals.clocks_compared:
        return (
            f"the ranks ran on {arrivals.machines} hosts, and a host's clock was not compared with "
            "the clock of rank 0's host. The comparison needs UDP to rank 0's host, and "
            "COMMPROF_CLOCK must not be off"
        )
    if arrivals.machines > 1 and arrivals.hosts_heard == 0:
        return (
            f"the ranks ran on {arrivals.machines} hosts, and one of them received no arrival "
            "times: UDP between the hosts may be blocked, or the ranks of the other hosts do not "
            "record"
        )
    if not arrivals.arrivals_known:
        return (
            "the ranks did not exchange the times at which they issued collectives. The exchange "
            "needs torch.distributed's default group and the native module. Full mode (--mode "
            "full) splits waiting from transfer without this exchange"
        )
    if arrivals.machines > 1:
        lost = f"other hosts' issue times were lost on the network{_unsent(summary)}"
        if arrivals.skipped_collectives:
            lost += f", or a host had no room for them ({arrivals.skipped_collectives} collectives)"
        return f"{behind}, or {lost}"
    return behind


def _unsent(summary: SummaryResult) -> str:
    arrivals = summary.arrivals
    count = arrivals.unsent_datagrams
    return f" ({count} datagrams could not be sent)" if count else ""


_LAST_ROWS = 8

_PARTS_HEADERS = (
    *("ranks", "steps", "step ms\nmedian", "\np95", "data", "forward", "back-\nward"),
    *("exposed", "\np95", "opti-\nmizer", "other", "= step", "wait", "trans-\nfer"),
)
_OPERATION_HEADERS = (
    *("operation", "group", "size", "count", "MB", "duration\np50", "\np95", "\np99"),
    *("blocked\ncount", "\np50", "\np95", "\np99", "early\np50", "\np99"),
    *("transfer\np50", "\np99", "algbw\nGB/s", "busbw\nGB/s", "failed", "not com-\npleted"),
)


def _parts_row(summary: SummaryResult) -> tuple[Any, ...]:
    timing = summary.timing
    times = (
        *(
            timing.step_median_ms,
            timing.step_p95_ms,
            timing.data_ms,
            timing.forward_ms,
        ),
        *(timing.backward_ms, timing.exposed_ms, timing.exposed_p95_ms),
        *(timing.optimizer_ms, timing.other_ms, timing.step_ms),
        *(timing.exposed_wait_ms, timing.exposed_transfer_ms),
    )
    return (summary.world_size, timing.steps, *map(three_digits, times))


def _operation_row(row: OperationRow) -> tuple[Any, ...]:
    return (
        *(printable(row.op), printable(row.group) or "-"),
        *(_size(row.below_bytes) if row.group else "-", row.count),
        three_digits(row.bytes / 1e6),
        *_times(row.duration),
        row.wait.count,
        *_times(row.wait),
        *(three_digits(row.until_last.p50_ms), three_digits(row.until_last.p99_ms)),
        *(three_digits(row.transfer.p50_ms), three_digits(row.transfer.p99_ms)),
        *(three_digits(row.algbw_gb_per_s), three_digits(row.busbw_gb_per_s)),
        row.failed,
        row.unfinished,
    )


def _times(quantiles: Quantiles) -> list[str]:
    return [three_digits(x) for x in (quantiles.p50_ms, quantiles.p95_ms, quantiles.p99_ms)]


def _size(below_bytes: int) -> str:
    """Formats the upper bound of a size class, such as "<64Ki"; "0" for 0 bytes."""
    if below_bytes == 0:
        return "0"
    power = below_bytes.bit_length() - 1
    unit, name = next(
        (u, n) for u, n in ((30, "Gi"), (20, "Mi"), (10, "Ki"), (0, "")) if power > u or u == 0
    )
    return f"<{2 ** (power - unit)}{name}"


def _ranks(summary: SummaryResult) -> str:
    return counted(summary.world_size, "rank")
