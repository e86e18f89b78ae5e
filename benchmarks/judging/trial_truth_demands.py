"""Summarises the runs of ``trial_truth.py``, and checks the demands on these runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.judging.demands import Demand, of_all
from benchmarks.judging.medians import MOST_STOLEN
from commprof.tune.trials.candidates import BASELINE, CONTROL

Row = dict[str, Any]
Rows = Sequence[Row]

TRIALS = 20
#: Verdicts that recommend no candidate. On loopback the compute hides the exchange, so
#: "not-the-bottleneck" is expected.
NO = ("none", "not-the-bottleneck")


def summary(rows: Rows) -> Iterator[str]:
    """Yields the lines of the summary."""
    steps, link = _true_steps(rows), _good(rows, "link")
    for label, values in sorted(steps.items(), key=lambda item: statistics.median(item[1])):
        yield (
            f"{label:20} {statistics.median(values):8.2f} ms in {len(values)} runs without "
            f"a trial; the runs differ by up to {max(values) / min(values) - 1:.1%}"
        )
    if steps and link:
        best, among = _fastest(steps), _recommended(steps, link)
        yield f"on the link: {best} is the fastest in runs without a trial"
        yield f"  {among} of {len(link)} trials named {best}, alone or with equally fast candidates"
        yield from _coverage_by_label(steps, link)
    for part in ("truth", "link", "loopback"):
        done = [one for one in rows if one["part"] == part]
        failed = sum("failed" in one for one in done)
        disturbed = sum(map(is_disturbed, done))
        seconds = sum(one["seconds"] for one in done)
        yield (
            f"{part}: {len(done) - failed - disturbed} runs, {failed} failed, {disturbed} that the "
            f"hypervisor disturbed, {seconds / 60:.1f} minutes"
        )


def is_disturbed(row: Row) -> bool:
    """True if the run did not fail, and the hypervisor stole too much of its time."""
    return "failed" not in row and row.get("stolen", 0.0) > MOST_STOLEN


def demands(rows: Rows) -> list[Demand]:
    """Checks the demands on the trials."""
    steps, link, loopback = _true_steps(rows), _good(rows, "link"), _good(rows, "loopback")
    found = []
    if steps and link:
        best = _fastest(steps)
        named = sum((one.get("fastest", one["choice"]) or BASELINE) == best for one in link)
        what = f"trials on the link that name {best}, the fastest in runs without a trial"
        found.append(of_all(what, named, len(link), TRIALS))
        held = sum(_held(steps, link).values())
        what = "95 % intervals on the link that contain the ratio of long runs without a trial"
        found.append(_at_its_rate(what, held, len(_held(steps, link)) * len(link)))
    if loopback:
        said_no = sum(one["answer"] in NO for one in loopback)
        found.append(
            of_all("trials on loopback that recommend no candidate", said_no, len(loopback), TRIALS)
        )
    if trials := [*link, *loopback]:
        held = sum(_holds(one["ratios"][CONTROL], 1) for one in trials)
        what = f"95 % intervals of `{CONTROL}` that contain its true ratio, 1"
        found.append(_at_its_rate(what, held, len(trials)))
    kinds = (steps, link, loopback)
    return [*found, of_all("parts measured", sum(map(bool, kinds)), len(kinds), len(kinds))]


def _at_its_rate(what: str, held: int, count: int) -> Demand:
    """Demands that 95 % of the intervals contain the truth, less two standard deviations."""
    least = max(0, math.ceil(0.95 * count - 2 * math.sqrt(0.05 * 0.95 * count)))
    asked = f"at least {least} (95 % less 2 SD)"
    return Demand(what, f"{held} of {count} ({held / count:.0%})", asked, held >= least)


def _good(rows: Rows, part: str) -> list[Row]:
    found = [one for one in rows if one["part"] == part and "failed" not in one]
    return [one for one in found if not is_disturbed(one)]


def _true_steps(rows: Rows) -> dict[str, list[float]]:
    steps: dict[str, list[float]] = {}
    for one in _good(rows, "truth"):
        steps.setdefault(one["label"], []).append(one["step_ms"])
    return steps


def _fastest(steps: dict[str, list[float]]) -> str:
    return min(steps, key=lambda label: statistics.median(steps[label]))


def _recommended(steps: dict[str, list[float]], link: Rows) -> int:
    best = _fastest(steps)
    return sum(best in (one.get("equals") or [one["choice"] or BASELINE]) for one in link)


def _true_ratios(steps: dict[str, list[float]]) -> dict[str, float]:
    truth = {label: statistics.median(values) for label, values in steps.items()}
    return {label: truth[label] / truth[BASELINE] for label in truth if label != BASELINE}


def _held(steps: dict[str, list[float]], link: Rows) -> dict[str, int]:
    """Returns the number of trials whose interval contains the true ratio, by candidate."""
    return {
        label: sum(_holds(one["ratios"][label], ratio) for one in link)
        for label, ratio in _true_ratios(steps).items()
    }


def _holds(ratio: Sequence[float], truth: float) -> bool:
    return ratio[1] <= truth <= ratio[2]


def _coverage_by_label(steps: dict[str, list[float]], link: Rows) -> Iterator[str]:
    for label, held in _held(steps, link).items():
        middle = statistics.median(one["ratios"][label][0] for one in link)
        yield (
            f"  {label:18} true ratio {_true_ratios(steps)[label]:.4f}, trials' median "
            f"{middle:.4f}, true ratio in {held} of {len(link)} intervals"
        )
