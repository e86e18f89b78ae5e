"""A run as text for the terminal."""

from __future__ import annotations

import math

from commprof.analysis.overhead import Overhead
from commprof.analysis.scaling import RunResult
from commprof.report import compression_table, memory_table, summary_table
from commprof.report.collectives_table import LEGEND, collectives_section
from commprof.report.cross_checks_table import blocks as cross_checks_blocks
from commprof.report.plain_text import wrapped
from commprof.report.setup_text import setup_text
from commprof.report.tabulated import Grid
from commprof.report.tabulated import tabulated as _table

SCALING_LEGEND = """\
step: wall time of the slowest rank. samples/s: samples of all ranks over the slowest rank's time.
efficiency: speed-up over growth in ranks. imbalance: largest over mean of the ranks' own work, less
1. overhead: median step with capture on over off, less 1 [95 % interval]. loss: of the last epoch.
Warm-up steps are in no figure."""

PARTS_LEGEND = """\
Mean step in ms, over ranks and steps, by CLOCK_MONOTONIC in the ranks:
data + forward + backward + exposed + optimizer + other = step;  exposed = wait + wire.
exposed: the training thread stood still for communication; wait: until the last rank had arrived,
wire: after that. hidden: communication in flight while the training thread worked."""


def render(result: RunResult, width: int) -> str:
    """The whole report; prose is wrapped to ``width`` columns, tables are as wide as they are."""
    blocks = [_heading(result, width)]
    if result.worlds:
        blocks += [_table(*scaling_grid(result)), SCALING_LEGEND]
        blocks += [_table(*parts_grid(result)), PARTS_LEGEND]
        if memory := memory_table.memory_section(result.worlds):
            blocks += [memory, memory_table.LEGEND]
        if result.worlds[-1].collectives:
            blocks += [collectives_section(result.worlds[-1]), LEGEND]
        if result.worlds[-1].compression:
            section = compression_table.compression_section(result.worlds[-1])
            blocks += [section, compression_table.LEGEND]
        blocks += cross_checks_blocks(result.worlds, width)
    blocks += summary_table.blocks(result.summaries, _table, _number)
    if found := notes(result):
        blocks.append("\n".join(_bullet(note, width) for note in found))
    return "\n\n".join(blocks) + "\n"


def notes(result: RunResult) -> list[str]:
    """What failed, and what the reader must know, in sentences."""
    found = [
        f"{size} {'rank' if size == 1 else 'ranks'}: {reason}" for size, reason in result.failures
    ]
    shown = {world.world_size for world in result.worlds}
    return [*found, *summary_table.notes(result.summaries, shown), *result.remarks]


def setup(result: RunResult) -> str:
    """How and where it ran, in a line."""
    context = result.context
    return setup_text(context)


def _heading(result: RunResult, width: int) -> str:
    lines = (result.context["description"], setup(result))
    return "\n".join(wrapped(line, width) for line in lines)


def scaling_grid(result: RunResult) -> Grid:
    """A row per world size: throughput, scaling, and what commprof cost."""
    rows = [
        (
            world.world_size,
            f"{world.measured_steps}+{world.warmup_steps}",
            _number(world.samples_per_s),
            _number(world.step_median_ms),
            _number(world.step_p95_ms),
            _formatted(scale.speedup, ".2f"),
            _formatted(scale.efficiency, ".1%"),
            _formatted(world.imbalance, ".1%"),
            _overhead(world.overhead),
            _formatted(world.average_loss, ".4f"),
        )
        for world, scale in zip(result.worlds, result.scaling, strict=True)
    ]
    return Grid(
        rows,
        (
            "ranks",
            "steps+\nwarm-up",
            "samples\n/s",
            "step ms\nmedian",
            "\np95",
            "speed-\nup",
            "effi-\nciency",
            "imba-\nlance",
            "overhead",
            "loss",
        ),
    )


def parts_grid(result: RunResult) -> Grid:
    """A row per world size: where its mean step went."""
    rows = []
    for world in result.worlds:
        parts = world.parts
        times = (
            parts.data_ms,
            parts.forward_ms,
            parts.backward_ms,
            parts.exposed_ms,
            parts.optimizer_ms,
            parts.other_ms,
            parts.step_ms,
            parts.wait_ms,
            parts.wire_ms,
            parts.hidden_ms,
        )
        rows.append((world.world_size, *map(_number, times)))
    return Grid(
        rows,
        (
            "ranks",
            "data",
            "compute:\nforward",
            "\n+ backward",
            "exposed",
            "opti-\nmizer",
            "other",
            "= step",
            "exposed:\nwait",
            "\n+ wire",
            "hidden",
        ),
    )


def _number(value: float) -> str:
    """Three significant digits, or all before the point."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _formatted(value: float, spec: str) -> str:
    return "-" if math.isnan(value) else format(value, spec)


def _overhead(overhead: Overhead | None) -> str:
    if overhead is None:
        return "-"
    ratio = overhead.on_over_off
    value, low, high = ((x - 1) * 100 for x in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.1f} % [{low:+.0f}, {high:+.0f}]"


def _bullet(text: str, width: int) -> str:
    return wrapped(text, width, "* ", "  ")
