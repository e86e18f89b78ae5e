"""One frame of ``commprof top``: a running job as lines of plain text, cut to a given width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from commprof.analysis.evidence import were_dropped
from commprof.analysis.late.stragglers import each_waits
from commprof.analysis.step.exposure import HOST_PAUSE
from commprof.monitor.state import JobState, RankState, StepTimes
from commprof.text import counted, printable

_GAP: Final = "  "
_UNKNOWN: Final = "-"
#: With more ranks than ``_MOST_ROWS``, only ``_FEW_ROWS`` of them are shown.
_MOST_ROWS: Final = 64
_FEW_ROWS: Final = 16
_MOST_MISSING: Final = 8


@dataclass(frozen=True)
class _Column:
    title: str
    value: Callable[[RankState], str]
    #: Columns with the largest number are the first to be dropped from a table that is too wide.
    #: Columns with 0 are never dropped.
    dispensable: int = 0


def frame(state: JobState, run: str, width: int) -> list[str]:
    """Returns the lines of a live view, none longer than ``width``."""
    shown = _costliest(state.ranks)
    lines = [_heading(state, run), ""]
    lines += _table(shown, width)
    if len(shown) < len(state.ranks):
        failed = "those that failed, and " if any(rank.failed for rank in shown) else ""
        lines.append(
            f"{len(shown)} of {len(state.ranks)} ranks: {failed}those for which the others wait "
            "longest."
        )
    lines += ["", _late(state), *_bandwidth(state), *_losses(state)]
    return [printable(line)[:width].rstrip() for line in lines]


def _costliest(ranks: Sequence[RankState]) -> list[RankState]:
    if len(ranks) <= _MOST_ROWS:
        return list(ranks)
    cost = sorted(ranks, key=lambda rank: (not rank.failed, -_known(rank.waited_for_s)))
    return sorted(cost[:_FEW_ROWS], key=lambda rank: rank.rank)


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def waiting_frame(run: str, width: int, problems: Sequence[str] = ()) -> list[str]:
    """Returns the lines to show while no rank's trace can be read; ``problems`` says why."""
    what = "no trace can be read" if problems else "no rank records"
    lines = [f"{what} in {run} yet; waiting", *_marked(problems)]
    return [printable(line)[:width] for line in lines]


def _heading(state: JobState, run: str) -> str:
    ranks = counted(state.world_size, "rank")
    seen = "" if len(state.ranks) == state.world_size else f" ({len(state.ranks)} visible)"
    at = datetime.fromtimestamp(state.time_s).strftime("%H:%M:%S")
    what = "has ended; its last steps" if state.finished else f"at {at}"
    backend = state.backend or "no backend"
    return f"{ranks}{seen}, {backend}, {state.mode} mode, {what}: {run}"


def _table(ranks: Sequence[RankState], width: int) -> list[str]:
    chosen = list(_COLUMNS)
    while True:
        cells = [[column.title for column in chosen]]
        cells += [[column.value(rank) for column in chosen] for rank in ranks]
        widths = [max(map(len, of_column)) for of_column in zip(*cells, strict=True)]
        total = sum(widths) + len(_GAP) * (len(widths) - 1)
        last = max(chosen, key=lambda column: column.dispensable)
        if total <= width or last.dispensable == 0:
            break
        chosen.remove(last)
    lines = [
        _GAP.join(cell.rjust(size) for cell, size in zip(row, widths, strict=True)) for row in cells
    ]
    lines.insert(1, _GAP.join("-" * size for size in widths))
    recent = next((rank.recent for rank in ranks if rank.recent), None)
    means = f"means of the last {recent.steps} steps" if recent else "but no step is complete yet"
    shown = [column.title for column in chosen]
    waited = "waited for: summed waiting of the other ranks, mean over all steps."
    notes = [waited] * (_WAITED in shown)
    notes += ["all_reduce: times of the latest calls."] * (_LATENCY in shown)
    return [
        *lines,
        "",
        f"Times in ms, {means}. exposed = wait + transfer + unknown.",
        *([" ".join(notes)] if notes else []),
    ]


def _late(state: JobState) -> str:
    late = state.late
    if late is None:
        return "Late rank: none."
    where = f", in {late.phase}" if late.phase else ""
    if late.phase == HOST_PAUSE:
        where = ", its process did not run (host pause)"
    who = each_waits(late.waiting_ranks, state.world_size)
    return f"Late rank: {late.rank}{where}; {who} {_ms(late.wait_s)} ms per step for it."


def _bandwidth(state: JobState) -> list[str]:
    lines = []
    for op, found in sorted(state.bandwidth.items()):
        use = found.of_profile
        against = "" if math.isnan(use) else f", {use:.0%} of the machine profile's bandwidth"
        speed = found.busbw_bytes_per_s / 1e9
        lines.append(f"{op}: bus bandwidth {speed:.3g} GB/s{against}.")
    return lines


def _losses(state: JobState) -> list[str]:
    dropped = sum(rank.dropped for rank in state.ranks)
    left_out = state.monitor.left_out_records
    lines = [f"{were_dropped(f'{dropped} records')}."] if dropped else []
    lines += _arrivals(state)
    if left_out:
        lines.append(
            f"{left_out} records were left out above: some ranks are too many steps behind."
        )
    return lines + _hosts(state) + _marked(state.monitor.problems)


def _hosts(state: JobState) -> list[str]:
    if not state.hosts:
        return []
    missing = state.missing_hosts
    ages = [host.age_s for host in state.hosts if not host.missing]
    oldest = f", up to {max(ages):.0f} s old" if ages else ""
    lines = [f"Figures of {counted(len(ages), 'host')} from their monitors{oldest}."]
    lines += _marked([host.sentence() for host in missing[:_MOST_MISSING]])
    if len(missing) > _MOST_MISSING:
        lines.append(f"* {counted(len(missing) - _MOST_MISSING, 'more host')} missing.")
    return lines


def _arrivals(state: JobState) -> list[str]:
    counts = [rank.arrivals for rank in state.ranks if rank.arrivals is not None]
    unknown = sum(each.unknown for each in counts)
    partial = sum(each.partial for each in counts)
    total = unknown + partial + sum(each.known for each in counts)
    if state.world_size == 1 or not unknown + partial:
        return []
    parts = [f"not known for {unknown} of {total} collectives"] if unknown else []
    if partial:
        parts += [f"for {partial} of {total} known only among the hosts that were heard from"]
    return [f"Rank that came last: {'; '.join(parts)}."]


def _marked(problems: Sequence[str]) -> list[str]:
    return [f"* {problem}" for problem in problems]


def _ms(seconds: float) -> str:
    if math.isnan(seconds):
        return _UNKNOWN
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.2f}"


def _of_step(part: Callable[[StepTimes], float]) -> Callable[[RankState], str]:
    return lambda rank: _UNKNOWN if rank.recent is None else _ms(part(rank.recent))


def _rate(rank: RankState) -> str:
    step_s = rank.recent.step_s if rank.recent else 0.0
    return f"{1 / step_s:.3g}" if step_s > 0 else _UNKNOWN


def _quantile(name: str) -> Callable[[RankState], str]:
    def value(rank: RankState) -> str:
        found = rank.operations.get("all_reduce")
        return _UNKNOWN if found is None else _ms(getattr(found, name))

    return value


def _waited_for(rank: RankState) -> str:
    """Formats the time in ms per step that the other ranks, added up, waited for this rank."""
    if rank.total is None or rank.total.steps == 0:
        return _UNKNOWN
    return _ms(rank.waited_for_s / rank.total.steps)


def _since(rank: RankState) -> str:
    return _UNKNOWN if math.isnan(rank.since_step_s) else f"{rank.since_step_s:.0f} s"


def _ratio(rank: RankState) -> str:
    ratio = rank.compression_ratio
    return _UNKNOWN if math.isnan(ratio) else f"{ratio:.3g}x"


#: Titles of the columns that do not show means of the recent steps.
_WAITED, _LATENCY = "waited for", "all_reduce p50"
_COLUMNS: Final = (
    _Column("rank", lambda rank: str(rank.rank)),
    _Column("host", lambda rank: rank.host[:16], 9),
    _Column("state", lambda rank: rank.status or _UNKNOWN, 3),
    _Column("step", lambda rank: _UNKNOWN if rank.step < 0 else str(rank.step)),
    _Column("ago", _since, 4),
    _Column("steps/s", _rate),
    _Column("step", _of_step(lambda t: t.step_s)),
    _Column("data", _of_step(lambda t: t.data_s), 6),
    _Column("compute", _of_step(lambda t: t.forward_s + t.backward_s), 1),
    _Column("optim", _of_step(lambda t: t.optimizer_s), 7),
    _Column("other", _of_step(lambda t: t.other_s), 8),
    _Column("exposed", _of_step(lambda t: t.exposed_s)),
    _Column("wait", _of_step(lambda t: t.wait_s), 1),
    _Column("transfer", _of_step(lambda t: t.transfer_s), 2),
    _Column("hidden", _of_step(lambda t: t.hidden_s), 5),
    _Column(_LATENCY, _quantile("recent_p50_s"), 6),
    _Column("p99", _quantile("recent_p99_s"), 6),
    _Column(_WAITED, _waited_for, 2),
    _Column("compr.", _ratio, 10),
)
