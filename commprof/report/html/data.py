"""Makes the JSON with the figures that the page's scripts draw.

Times of the timeline are whole microseconds. In the columns ``begin``, ``issue``, ``step`` and
``collective``, each number is the difference from the previous value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.collectives.in_flight import UNSPLIT, InFlightIntervals
from commprof.analysis.detail import OF_OTHER, PARTS, WorldDetail
from commprof.analysis.predicted import PredictedPoint, Predictions
from commprof.analysis.scaling import Scaling
from commprof.analysis.timeline.drawn_timeline import DrawnStretches, RankTimeline, Timeline
from commprof.analysis.world import WorldResult
from commprof.files import plain
from commprof.report.full_report import FullReport
from commprof.report.sections.predicted import setting_text
from commprof.satellites import AddedReport
from commprof.stats.intervals import mean_interval
from commprof.text import printable

#: Timelines are shortened, as far as possible, to make a page with all contents at most this large.
MOST_BYTES = 1_000_000
#: Largest number of spans in all timelines. Browsers draw spans one by one.
MOST_SPANS = 30_000
#: Largest number of points in the picture of the steps. In a longer run, each point shows the
#: slowest of several steps.
MOST_POINTS = 1_000
_LONGEST_NAME = 60

Ints = npt.NDArray[np.int64]


def page_data(
    reports: Sequence[FullReport], added: AddedReport | None = None, most_bytes: int = MOST_BYTES
) -> str:
    """Renders the page's data as text that is safe inside a script element."""
    return _text(as_dict(reports, added, most_bytes))


def as_dict(
    reports: Sequence[FullReport], added: AddedReport | None = None, most_bytes: int = MOST_BYTES
) -> dict[str, Any]:
    """Returns the page's data; ``tests/unit/report/test_pages.py`` holds its schema.

    Args:
        reports: report of one run, or of one run for each strategy.
        added: report of the run's trial, if there was one.
        most_bytes: largest size of the data as text, in bytes. Timelines are shortened, as far as
            possible, to meet this limit.
    """
    details = [detail for report in reports for detail in report.details]
    worlds = [
        _world(report.strategy if len(reports) > 1 else "", *parts)
        for report in reports
        for parts in zip(report.details, report.result.worlds, report.result.scaling, strict=True)
    ]
    predicted = [curve for report in reports for curve in _predicted(report.predictions)]
    pictures = {"trial": [], "baseline": []} if added is None else added.pictures()
    shown: dict[str, Any] = plain({"worlds": worlds, "predicted": predicted, **pictures})
    room = most_bytes - len(_text(shown)) - len(',"timeline":') * len(worlds)
    fitted = _fitted([detail.timeline for detail in details], room)
    for world, timeline in zip(shown["worlds"], fitted, strict=True):
        world["timeline"] = timeline
    return shown


def _text(value: Any) -> str:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _world(name: str, detail: WorldDetail, world: WorldResult, scale: Scaling) -> dict[str, Any]:
    low, high = world.timing.step_quartiles_ms
    return {
        "name": page_label(name),
        "ranks": world.world_size,
        "samples_per_s": world.training.samples_per_s,
        "samples_per_s_range": _samples_per_s_range(detail, world),
        "efficiency": scale.efficiency,
        "quartiles_ms": [low, world.timing.step_median_ms, high],
        "parts": [page_parts(r.rank, vars(r.parts)) for r in world.ranks],
        "mean": page_parts(-1, vars(world.parts)),
        "steps": _steps(detail),
    }


def _samples_per_s_range(detail: WorldDetail, world: WorldResult) -> list[float]:
    if len(detail.slowest_ms) == 0:
        return [math.nan, math.nan]
    step = mean_interval(detail.slowest_ms)
    return [
        page_number(world.training.samples_per_s * step.value / end)
        for end in (step.high, step.low)
    ]


def _predicted(predictions: Predictions | None) -> list[dict[str, Any]]:
    """Returns a curve per setting, with points sorted by number of ranks.

    "checked" is true if the intervals include the model's error on held-out settings.
    """
    checked = predictions is not None and predictions.worst_error is not None
    points = () if predictions is None else predictions.points
    curves: dict[str, list[PredictedPoint]] = {}
    for point in sorted(points, key=lambda point: point.world_size):
        curves.setdefault(setting_text(point), []).append(point)
    return [
        {
            "setting": setting[:_LONGEST_NAME],
            "checked": checked,
            "points": [
                {
                    "ranks": point.world_size,
                    **{name: page_number(x) for name, x in asdict(point.samples_per_s).items()},
                    "outside": bool(point.outside),
                }
                for point in curve
            ],
        }
        for setting, curve in curves.items()
    ]


def page_parts(rank: int, parts: dict[str, float]) -> dict[str, Any]:
    """Returns the parts of a rank's mean step in ms. Rank -1 stands for the mean over all ranks."""
    rounded: dict[str, Any] = {
        name: page_number(parts[f"{name}_ms"]) for name in (*PARTS, "unsplit")
    }
    if math.isnan(rounded["unphased_compute"]):
        rounded |= dict.fromkeys(OF_OTHER)
    return {"rank": rank, **rounded}


def _steps(detail: WorldDetail) -> dict[str, Any]:
    """Returns indices and times of steps; in a long run, only the slowest of every few steps."""
    every = -(-len(detail.steps) // MOST_POINTS) or 1
    groups = (slice(at, at + every) for at in range(0, len(detail.steps), every))
    slowest = [group.start + int(np.argmax(detail.slowest_ms[group])) for group in groups]
    return {
        "every": every,
        "step": detail.steps[slowest].tolist(),
        "slowest_ms": list(map(page_number, detail.slowest_ms[slowest].tolist())),
    }


def _fitted(timelines: Sequence[Timeline], most_bytes: int) -> list[dict[str, Any]]:
    """Returns the timelines' data, cut to ``most_bytes`` in total if possible.

    Each timeline may use an equal share of the bytes. Bytes that a small timeline does not need go
    to larger timelines.
    """
    cut = _fewer(timelines)
    fitted = [_timeline(each) for each in cut]
    sizes = [len(_text(each)) for each in fitted]
    left = most_bytes
    order = sorted(range(len(fitted)), key=lambda i: sizes[i])
    for done, i in enumerate(order):
        share = left // (len(order) - done)
        if sizes[i] > share:
            fitted[i], sizes[i] = _shorter(timelines[i], cut[i].spans, sizes[i], share)
        left = max(0, left - sizes[i])
    return fitted


def _shorter(
    drawn: Timeline, spans: int, size_bytes: int, most_bytes: int
) -> tuple[dict[str, Any], int]:
    """Cuts a timeline to steps around its middle; returns the data, and its size in bytes.

    If the timeline cannot be cut far enough, the data is larger than ``most_bytes``.

    Args:
        drawn: the whole timeline.
        spans: number of spans that is too large. The search begins below this number.
        size_bytes: size of the data with this number of spans.
        most_bytes: wanted size of the returned data.
    """
    while True:
        cut = drawn.middle(int(spans * min(0.99, most_bytes / size_bytes)))
        fitted = _timeline(cut)
        size_bytes = len(_text(fitted))
        if size_bytes <= most_bytes or cut.spans >= spans:
            return fitted, size_bytes
        spans = cut.spans


def _fewer(timelines: Sequence[Timeline]) -> list[Timeline]:
    """Cuts timelines to ``MOST_SPANS`` spans in total.

    Each timeline may keep an equal share of the spans. Spans that a small timeline does not need go
    to larger timelines.
    """
    fitted = [*timelines]
    left = MOST_SPANS
    order = sorted(range(len(timelines)), key=lambda i: timelines[i].spans)
    for done, i in enumerate(order):
        fitted[i] = timelines[i].middle(left // (len(order) - done))
        left = max(0, left - fitted[i].spans)
    return fitted


def _timeline(drawn: Timeline) -> dict[str, Any]:
    begins = [int(rank.steps.begin_ns[0]) for rank in drawn.ranks if len(rank.steps.begin_ns)]
    origin_ns = min(begins, default=0)
    numbers = _distinct(rank.in_flight.collective for rank in drawn.ranks)
    kinds = _distinct(rank.in_flight.kind for rank in drawn.ranks)
    return {
        "steps": drawn.steps.tolist(),
        "measured_steps": drawn.measured_steps,
        "left_out": drawn.left_out,
        "clocks_shared": drawn.clocks_shared,
        "phases": list(drawn.phases),
        "kinds": [
            [kind.op, page_label(kind.group), kind.dtype, kind.size_bytes]
            for kind in (drawn.kinds[i] for i in kinds.tolist())
        ],
        "ranks": [_rank(rank, origin_ns, numbers, kinds) for rank in drawn.ranks],
    }


def _distinct(columns: Iterable[Ints]) -> Ints:
    return np.unique(np.concatenate([np.zeros(0, np.int64), *columns]))


def _rank(rank: RankTimeline, origin_ns: int, numbers: Ints, kinds: Ints) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "steps": _stretches(rank.steps, origin_ns),
        "phases": {**_stretches(rank.phases, origin_ns), "code": rank.phases.code.tolist()},
        "waiting": _stretches(rank.waiting, origin_ns),
        "intervals": _intervals(rank.in_flight, origin_ns, numbers, kinds),
    }


def _stretches(part: DrawnStretches, origin_ns: int) -> dict[str, Any]:
    return {
        "begin": _differences(_micros(part.begin_ns - origin_ns)),
        "length": _micros(part.end_ns - part.begin_ns).tolist(),
    }


def _intervals(
    part: InFlightIntervals, origin_ns: int, numbers: Ints, kinds: Ints
) -> dict[str, Any]:
    split = part.negotiate_ns != UNSPLIT
    return {
        "issue": _differences(_micros(part.issue_ns - origin_ns)),
        "kind": np.searchsorted(kinds, part.kind).tolist(),
        "step": _differences(part.step),
        "collective": _differences(np.searchsorted(numbers, part.collective)),
        "bucket": part.bucket.tolist(),
        "negotiate": np.where(split, _micros(part.negotiate_ns), -1).tolist(),
        "queue": _micros(part.queue_ns).tolist(),
        "wait": _micros(part.wait_ns).tolist(),
        "transfer": _micros(part.transfer_ns).tolist(),
    }


def _micros(values_ns: Ints) -> Ints:
    return np.rint(values_ns / 1000).astype(np.int64)


def _differences(values: Ints) -> list[int]:
    differences: list[int] = np.diff(values, prepend=0).tolist()
    return differences


def page_label(text: str) -> str:
    """Makes a name printable, and short enough to stand beside a picture."""
    return printable(text)[:_LONGEST_NAME]


def page_number(value: float) -> float:
    """Rounds to four significant digits, which are enough for a picture."""
    return float(f"{value:.4g}")
