"""Full report of a run as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from commprof.analysis.scaling import RunResult
from commprof.analysis.step.overhead import Overhead
from commprof.analysis.verdict import Verdict
from commprof.analysis.world import WorldResult
from commprof.report.sections import compression as compression_table
from commprof.report.sections import devices as devices_table
from commprof.report.sections import host_links as host_links_table
from commprof.report.sections import incidents as incidents_table
from commprof.report.sections import memory as memory_table
from commprof.report.sections import named_causes
from commprof.report.sections import nccl as nccl_table
from commprof.report.sections import summary as summary_table
from commprof.report.sections.attempts import LEGEND as ATTEMPTS_LEGEND
from commprof.report.sections.attempts import attempts_grid
from commprof.report.sections.collectives import LEGEND, collectives_section
from commprof.report.sections.cross_checks import blocks as cross_checks_blocks
from commprof.report.sections.gains import LEGEND as GAINS_LEGEND
from commprof.report.sections.gains import gains_grid
from commprof.report.sections.setup import setup_text
from commprof.report.sections.waiting import CAUSES_LEGEND, causes_grid
from commprof.report.tabulated import Grid
from commprof.report.tabulated import tabulated as _table
from commprof.text import fitted, printable, wrapped

SCALING_LEGEND = """\
step: wall time of the slowest rank. samples/s: samples of all ranks divided by the slowest rank's
time. efficiency: speed-up divided by growth in ranks. imbalance: largest / mean - 1 of the ranks'
own work, which is the step less exposed communication. overhead: on / off - 1 [95 % interval], from
the training threads' CPU time in a step with capture on and in an adjacent step with capture off;
"unclear" if an end of the interval is more than 2 % away from the estimate. loss: of the last
epoch. All figures are without warm-up steps."""

PARTS_LEGEND = """\
Mean step in ms over ranks and steps, measured with CLOCK_MONOTONIC in the ranks:
data + forward + backward + exposed + optimizer + other = step;  exposed = wait + transfer.
exposed: the training thread waited for communication; wait: until the last rank had arrived;
transfer: after that. hidden: communication in flight while the training thread worked."""

#: Legend for collectives on GPUs, where the times are those of the GPU's compute stream.
DEVICE_LEGEND = """\
Mean step in ms over ranks and steps, on the GPU's compute stream, timed by device events:
data + forward + backward + exposed + optimizer + other = step;  exposed = wait + transfer.
exposed: the stream waited for communication; wait: until the last rank had arrived; transfer: after
that. hidden: communication in flight while the stream worked, or was idle for another reason."""

#: Legend for recordings of other profilers, whose times are from their own clocks.
RECORDING_LEGEND = """\
Mean step in ms, over ranks and steps:
data + forward + backward + exposed + optimizer + other = step;  exposed = wait + transfer.
exposed: communication ran and nothing else did; wait: until the last rank had arrived; transfer:
after that. hidden: communication during other work."""

#: The same if kernels of a GPU were recorded.
KERNEL_LEGEND = """\
Mean step in ms, over ranks and steps, of the time of the GPUs:
data + forward + backward + no phase + exposed + optimizer + copies + idle = step;
exposed = wait + transfer. data, forward, backward, optimizer: kernels ran that were launched in
this phase; no phase: kernels ran whose phase is not known; exposed: kernels of communication ran
alone; copies: only copies or fills ran; idle: nothing ran. wait: until the last rank had arrived;
transfer: after that. hidden: communication during other work."""


def parts_legend(worlds: Sequence[WorldResult]) -> str:
    """Returns the legend of the table of mean steps."""
    if _has_kernels(worlds):
        return KERNEL_LEGEND
    if any(world.recording.foreign for world in worlds):
        return RECORDING_LEGEND
    return DEVICE_LEGEND if any(world.recording.device_timed for world in worlds) else PARTS_LEGEND


def _has_kernels(worlds: Sequence[WorldResult]) -> bool:
    return any(not math.isnan(world.parts.unphased_compute_ms) for world in worlds)


def render(
    result: RunResult, width: int, verdict: Verdict | None = None, tables: int | None = None
) -> str:
    """Renders the whole report, with the verdict before the tables.

    Args:
        result: result of the run.
        width: number of characters to wrap prose to.
        verdict: verdict on the same run; None if the run has no figures.
        tables: number of characters; wider tables are split. None leaves all tables whole.
    """
    blocks = [_heading(result, width), *_apart(result, width), *incidents_block(result, width)]
    if verdict is not None:
        blocks += verdict_blocks(verdict, width)
    blocks += [fitted(block, width) for block in named_causes.blocks(result.worlds, width)]
    for table, legend in _tables(result, tables):
        blocks += [table, fitted(legend, width)]
    if result.worlds:
        blocks += cross_checks_blocks(result.worlds, width)
    drawn = partial(_table, width=tables)
    blocks += summary_table.blocks(result.summaries, drawn, _number, width)
    if found := notes(result):
        blocks.append("\n".join(["Caveats:", *(_bullet(note, width) for note in found)]))
    return "\n\n".join(blocks) + "\n"


def _apart(result: RunResult, width: int) -> list[str]:
    """Returns a block on ranks that train apart; of world sizes that no verdict is about."""
    shown = {world.world_size for world in result.worlds}
    found = [
        each.apart
        for each in result.summaries
        if each.apart is not None and each.world_size not in shown
    ]
    said = [f"{each.sentence} {each.advice}".strip() for each in found]
    return ["\n".join(wrapped(text, width) for text in said)] if said else []


def _tables(result: RunResult, width: int | None) -> Iterator[tuple[str, str]]:
    """Yields each table for which there are figures, with its legend."""
    if result.attempts:
        yield _table(*attempts_grid(result.attempts), width=width), ATTEMPTS_LEGEND
    for found in result.stepless:
        yield collectives_section(found, tables=width), LEGEND
    for inside in result.nccl:
        yield from nccl_table.section(inside, width)
    if not result.worlds:
        return
    last = result.worlds[-1]
    yield _table(*scaling_grid(result), width=width), SCALING_LEGEND
    yield _table(*parts_grid(result), width=width), parts_legend(result.worlds)
    if (won := gains_grid(result.worlds)) is not None:
        yield _table(*won, width=width), GAINS_LEGEND
    if (causes := causes_grid(result.worlds)) is not None:
        yield _table(*causes, width=width), CAUSES_LEGEND
    if (kernels := devices_table.kernel_times_grid(result.worlds)) is not None:
        yield _table(*kernels, width=width), devices_table.KERNEL_LEGEND
    if links := host_links_table.section(result.worlds, width):
        yield links, host_links_table.LEGEND
    if memory := memory_table.memory_section(result.worlds, width):
        yield memory, memory_table.LEGEND
    if (devices := devices_table.grid(result.worlds)) is not None:
        yield _table(*devices, width=width), devices_table.LEGEND
    if last.communication.collectives:
        yield collectives_section(last, tables=width), LEGEND
    if last.communication.compression:
        section = compression_table.compression_section(last, tables=width)
        yield section, compression_table.LEGEND


def verdict_blocks(verdict: Verdict, width: int) -> list[str]:
    """Returns blocks of text: the verdict's sentences with the advice, then the advised command.

    The second block is missing if no command is advised.
    """
    said = [verdict.headline, *verdict.sentences]
    advice = verdict.next_step
    if advice.advice:
        said.append(advice.advice)
    blocks = ["\n".join(wrapped(sentence, width) for sentence in said)]
    return [*blocks, f"  {printable(advice.command)}"] if advice.command else blocks


def incidents_block(result: RunResult, width: int) -> list[str]:
    """Returns two blocks of text, the incidents and their legend; empty without incidents."""
    lines = incidents_table.sentences(result.incidents)
    bullets = "\n".join(_bullet(line, width) for line in lines)
    legend = fitted(incidents_table.LEGEND, width)
    return [f"{incidents_table.TITLE}:\n{bullets}", legend] if lines else []


def notes(result: RunResult) -> list[str]:
    """Returns failures and caveats of a run, in sentences."""
    found = [
        f"{size} {'rank' if size == 1 else 'ranks'}: {reason}" for size, reason in result.failures
    ]
    shown = {world.world_size for world in result.worlds}
    told = shown | {size for size, _ in result.failures}  # whose reasons end with the problems
    ended = incidents_table.ended_changes(result.incidents)
    return [*found, *summary_table.notes(result.summaries, shown, told), *result.remarks, *ended]


def setup(result: RunResult) -> str:
    """Returns a line on how and where the job ran."""
    context = result.context
    return setup_text(context)


def _heading(result: RunResult, width: int) -> str:
    lines = (result.context["description"], setup(result))
    return "\n".join(wrapped(line, width) for line in lines)


def scaling_grid(result: RunResult) -> Grid:
    """Makes a table with a row per world size: throughput, scaling, and commprof's overhead."""
    rows = [
        (
            world.world_size,
            f"{world.timing.measured_steps}+{world.timing.warmup_steps}",
            _number(world.training.samples_per_s),
            _number(world.timing.step_median_ms),
            _number(world.timing.step_p95_ms),
            _formatted(scale.speedup, ".2f"),
            _formatted(scale.efficiency, ".1%"),
            _formatted(world.imbalance, ".1%"),
            _overhead(world.profiler_cost.overhead),
            _formatted(world.training.average_loss, ".4f"),
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
    """Makes a table with a row per world size: the parts of its mean step."""
    rows = []
    on_device = _has_kernels(result.worlds)
    for world in result.worlds:
        parts = world.parts
        times = (
            parts.data_ms,
            parts.forward_ms,
            parts.backward_ms,
            *((parts.unphased_compute_ms,) if on_device else ()),
            parts.exposed_ms,
            parts.optimizer_ms,
            *((parts.copies_ms, parts.idle_ms) if on_device else (parts.other_ms,)),
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
            *(("\n+ no phase",) if on_device else ()),
            "exposed",
            "opti-\nmizer",
            *(("copies", "idle") if on_device else ("other",)),
            "= step",
            "exposed:\nwait",
            "\n+ transfer",
            "hidden",
        ),
    )


def _number(value: float) -> str:
    """Formats with two decimals below 10, one below 1000, and none from 1000 on; "-" for NaN."""
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
    if not overhead.best.measurable:
        return "unclear"
    ratio = overhead.best.on_over_off
    value, low, high = ((x - 1) * 100 for x in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.1f} % [{low:+.1f}, {high:+.1f}]"


def _bullet(text: str, width: int) -> str:
    return wrapped(text, width, "* ", "  ")
