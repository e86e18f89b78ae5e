"""Renders a comparison of two runs as text for the terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from commprof.analysis.compare import Change, RunComparison, WorldComparison
from commprof.files import plain
from commprof.report.tabulated import Grid, not_shown, tabulated, three_digits
from commprof.text import counted, fitted, printable

LEGEND = """\
Medians over the measured steps in ms. step: time of the slowest rank. Parts of the step: means over
ranks. Collectives: time from issue to completion. B/A: ratio of the medians [95 % interval]. p:
rank-sum test over the steps. The p of parts and collectives is corrected for the number of tests.
Interval and p count correlated steps as fewer independent steps. If these are too few, interval and
p are not shown. changed: p < 0.05, and the interval excludes 1. A change shows that the two runs
differ, but not why: other programs on the machine may be the cause."""

_SETTINGS = ("setting", "A", "B")
_MOST_COLLECTIVES = 8
_LONGEST = 60
_BEFORE = 12


def render(
    result: RunComparison, fail_above: float | None, width: int, tables: int | None = None
) -> str:
    """Renders a comparison of two runs as text.

    Prose is wrapped to ``width`` characters. A table wider than ``tables`` characters is split.
    None means that no table is split.
    """
    blocks = ["\n".join(printable(line) for line in (f"A: {result.a}", f"B: {result.b}"))]
    for world in result.worlds:
        table = tabulated(*comparison_grid(world), width=tables)
        more = not_shown(len(world.collectives) - _MOST_COLLECTIVES, "kind", " of call")
        heading = f"{counted(world.world_size, 'rank')}, {_steps(world)}:"
        blocks.append("\n".join([heading, table, *more]))
    if result.worlds:
        blocks.append(fitted(LEGEND, width))
    if result.settings:
        rows = [(printable(s.name), *_differing(s.a, s.b)) for s in result.settings]
        blocks.append(f"Settings that differ:\n{tabulated(rows, _SETTINGS, (0, 1, 2), tables)}")
    blocks.append("\n".join(textwrap.fill(line, width) for line in _verdict(result, fail_above)))
    return "\n\n".join(blocks) + "\n"


def comparison_grid(world: WorldComparison) -> Grid:
    """Makes a table with a row per part of the step, then a row per collective (at most 8)."""
    changes = [*world.parts, *world.collectives[:_MOST_COLLECTIVES]]
    if world.is_busy:
        changes.insert(1, world.with_cores)
    rows = [
        (
            printable(change.name),
            three_digits(change.a_ms),
            three_digits(change.b_ms),
            _ratio(change),
            _p_value(change.p_value),
            "changed" if change.significant else "",
        )
        for change in changes
    ]
    return Grid(rows, ("", "A ms", "B ms", "B/A", "p", ""), (0, 5))


def _verdict(result: RunComparison, fail_above: float | None) -> Iterator[str]:
    for sizes, which in ((result.only_a, "A"), (result.only_b, "B")):
        if sizes:
            these = ", ".join(counted(size, "rank") for size in sizes)
            yield f"Only {which} has figures for {these}."
    yield from only_summarised(result)
    if not result.worlds:
        yield "No world size has figures in both runs: nothing can be compared."
    for each in result.not_compared:
        yield (
            f"At {counted(each.world_size, 'rank')} {each.figures} of {each.run} are not known: "
            f"{each.lacking}."
        )
    for world in result.worlds:
        yield f"{counted(world.world_size, 'rank')}: {_about_step(world)}{_about_load(world)}"
    if fail_above is None:
        return
    slower = result.slower_by_more_than(fail_above)
    too_slow = ", ".join(counted(world.world_size, "rank") for world in slower)
    limit = f"{fail_above:.1%}"
    if slower:
        yield f"Slower by more than {limit}: {too_slow}."
    elif result.worlds:
        yield f"No world size is significantly slower by more than {limit}."


def only_summarised(result: RunComparison) -> Iterator[str]:
    """Yields a sentence for each run that holds only summaries of its steps."""
    for which in result.summarised:
        yield (
            f"{which} was recorded in always-on mode, which does not keep single steps; record it "
            "in full mode (--mode full)."
        )


def _about_step(world: WorldComparison) -> str:
    step = world.step
    if math.isnan(step.ratio.value):
        return "the step cannot be compared: a run has no step times, or the median of A is 0."
    change = f"{(step.ratio.value - 1) * 100:+.1f} %"
    if world.too_short:
        worth = " and ".join(f"{count:.2g}" for count in world.effective_steps)
        return (
            f"too few steps to decide ({change}): neighbouring steps are correlated, so the steps "
            f"of the two runs count as only {worth} independent ones; 4 in each run are enough. "
            "Record more steps."
        )
    # the step changed significantly, but not after run delay was subtracted
    if math.isnan(step.p_value):
        return (
            f"the step's change ({change}) may come from a lack of cores. After subtracting the "
            "time in which ranks could run but had no core, the steps do not differ significantly."
        )
    if not step.significant:
        return f"the steps do not differ significantly ({change}, {_p_text(step.p_value)})."
    word = "longer" if step.ratio.value > 1 else "shorter"
    return f"B's step is {word}: {change}, {_p_text(step.p_value)}."


def _about_load(world: WorldComparison) -> str:
    if world.step.significant or not world.is_busy:
        return ""
    shares = world.no_core_share
    a, b = ("an unknown part" if math.isnan(share) else f"{share:.0%}" for share in shares)
    return (
        f" Outside of waiting, the ranks could run but had no core for {a} of their time in A and "
        f"for {b} in B. Other programs on the machine may be the cause of changes in the step's "
        "parts and in the collectives, so these changes are not judged."
    )


def _ratio(change: Change) -> str:
    ratio = change.ratio
    if math.isnan(ratio.value):
        return "-"
    if math.isnan(ratio.low):
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _p_value(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"


def _p_text(value: float) -> str:
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.4f}"


def _steps(world: WorldComparison) -> str:
    a, b = world.steps
    return f"{a} and {b} measured steps"


def _differing(a: str, b: str) -> tuple[str, str]:
    a, b = printable(a), printable(b)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    begin = max(0, same - _BEFORE) if max(len(a), len(b)) > _LONGEST else 0
    shown = [("..." if begin else "") + text[begin:] for text in (a, b)]
    first, second = (s if len(s) <= _LONGEST else f"{s[: _LONGEST - 3]}..." for s in shown)
    return first, second


#: Incremented when a field changes its meaning or is removed, not when a field is added.
SCHEMA_VERSION = 2


def render_json(result: RunComparison, fail_above: float | None) -> str:
    """Renders a comparison as indented JSON. Unknown figures are null.

    The object has these fields:

    - ``a``, ``b``: names of the runs.
    - ``worlds``: an object per world size that both runs have.
    - ``only_a``, ``only_b``: world sizes with figures in only one run.
    - ``settings``: settings that differ between the runs.
    - ``fail_above``: the argument.
    - ``slower``: world sizes at which B's step is significantly longer by more than ``fail_above``.
    - ``not_compared``: figures that the recordings of a run do not support, as objects with
      ``run`` ("A" or "B"), ``world_size``, ``figures`` and ``lacking``.

    Each object of ``worlds`` has these fields:

    - ``num_processes``: the world size.
    - ``steps``: number of measured steps in A and in B.
    - ``effective_steps``: number of independent steps that the measured steps are worth.
    - ``no_core_share``: for A and for B, the fraction of the time outside of waiting in which ranks
      could run but had no core.
    - ``with_cores``: change of the step time after this time without a core is subtracted.
    - ``parts``, ``collectives``: changes of the parts of the step and of the collectives.

    Each change has ``name``, ``a_ms``, ``b_ms``, ``ratio`` (``value``, ``low``, ``high``;
    null if unknown), ``p_value`` and ``significant``.
    """
    slower = () if fail_above is None else result.slower_by_more_than(fail_above)
    value = {
        "schema_version": SCHEMA_VERSION,
        "a": result.a,
        "b": result.b,
        "worlds": [_world(world) for world in result.worlds],
        "only_a": list(result.only_a),
        "only_b": list(result.only_b),
        "settings": [dataclasses.asdict(setting) for setting in result.settings],
        "fail_above": fail_above,
        "slower": [world.world_size for world in slower],
        "not_compared": [dataclasses.asdict(each) for each in result.not_compared],
    }
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def _world(world: WorldComparison) -> dict[str, Any]:
    return {
        "num_processes": world.world_size,
        "steps": list(world.steps),
        "effective_steps": list(world.effective_steps),
        "no_core_share": list(world.no_core_share),
        "with_cores": _change(world.with_cores),
        "parts": [_change(change) for change in world.parts],
        "collectives": [_change(change) for change in world.collectives],
    }


def _change(change: Change) -> dict[str, Any]:
    return {**dataclasses.asdict(change), "significant": change.significant}
