"""A report as sections of text and tables, from which the Markdown and HTML pages are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commprof.analysis.card import Card
from commprof.analysis.collectives.kinds import SteplessCollectives
from commprof.analysis.collectives.nccl import NcclWorld
from commprof.analysis.scaling import RunResult
from commprof.analysis.step.overhead import MOST_REACH, OwnCost
from commprof.analysis.verdict import Binding, Verdict
from commprof.analysis.world import WorldResult
from commprof.report.card import facts
from commprof.report.full_report import FullReport
from commprof.report.sections import collectives as collectives_table
from commprof.report.sections import compression as compression_table
from commprof.report.sections import cost as cost_table
from commprof.report.sections import devices as devices_table
from commprof.report.sections import host_links as host_links_table
from commprof.report.sections import incidents as incidents_table
from commprof.report.sections import memory as memory_table
from commprof.report.sections import named_causes
from commprof.report.sections import nccl as nccl_table
from commprof.report.sections import predicted as predicted_table
from commprof.report.sections import summary as summary_table
from commprof.report.sections.attempts import LEGEND as ATTEMPTS_LEGEND
from commprof.report.sections.attempts import attempts_grid
from commprof.report.sections.cross_checks import HEADING as CHECKS_LEGEND
from commprof.report.sections.cross_checks import cross_checks_grid
from commprof.report.sections.gains import LEGEND as GAINS_LEGEND
from commprof.report.sections.gains import TITLE as GAINS_TITLE
from commprof.report.sections.gains import gains_grid
from commprof.report.sections.waiting import (
    CAUSES_LEGEND,
    CAUSES_TITLE,
    causes_grid,
    waiting_grid,
)
from commprof.report.sections.waiting import LEGEND as WAITING_LEGEND
from commprof.report.table import SCALING_LEGEND, notes, parts_grid, parts_legend, scaling_grid
from commprof.report.tabulated import Grid, tabulated, three_digits
from commprof.satellites import AddedReport
from commprof.text import counted, printable

#: Largest number of rows of a table on a page; the JSON result has all.
_MOST_ROWS = 24

_TIMELINE = """\
The time of each collective on each rank. early: from this rank's issue until the last rank's issue;
queue: then until the backend runs it on this rank; wait: then until it runs on the last rank;
transfer: then until completion. The table of the collectives divides the same time differently: its
queue is all of the time from the issue to the start on the same rank."""


@dataclass(frozen=True)
class Section:
    """One section of a report: a heading and its contents, in the order of the fields."""

    id: str
    title: str
    #: Main sentence.
    lead: str = ""
    #: Main figures with their names, as on the card.
    facts: tuple[tuple[str, str], ...] = ()
    paragraphs: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    #: Caption and table.
    grids: tuple[tuple[str, Grid], ...] = ()
    #: Definitions of the terms in the tables and pictures.
    legend: str = ""
    #: Text laid out with spaces.
    preformatted: tuple[str, ...] = ()
    #: False if the section has no content without its picture.
    stands_alone: bool = True


def sections(report: FullReport, added: AddedReport | None = None) -> Iterator[Section]:
    """Yields all sections for which this run has content.

    With ``added``, such as a trial's report, no means and no quartiles are shown: the steps
    alternate between candidates, so figures over all steps would describe no candidate.
    """
    result = report.result
    if added is not None:
        yield added.section()
        yield from incidents(result)
        yield from _notes(result)
        if result.worlds:
            yield _timeline()
        return
    if report.verdict is not None:
        yield _verdict(report.verdict, report.card)
    yield from _named_causes(result)
    yield from incidents(result)
    yield from _notes(result)
    if result.attempts:
        yield Section(
            "attempts",
            "Attempts",
            grids=(("The job's first start and each restart", attempts_grid(result.attempts)),),
            legend=ATTEMPTS_LEGEND,
        )
    if result.worlds:
        yield from _of_all_worlds(report)
        yield from _of_last_world(result.worlds[-1])
    if report.cost is not None:
        yield Section(
            "cost",
            "Cost",
            paragraphs=tuple(cost_table.best(report.cost)),
            grids=((cost_table.heading(report.cost), cost_table.cost_grid(report.cost)),),
            legend=cost_table.LEGEND,
        )
    for found in result.stepless:
        yield _collectives(f"collectives-{found.world_size}", found)
    for inside in result.nccl:
        yield from _nccl(inside)
    yield from own_cost(report)
    blocks = summary_table.blocks(result.summaries, tabulated, three_digits)
    if blocks:
        yield Section("always-on", "Always-on mode", preformatted=tuple(blocks))


def _verdict(verdict: Verdict, card: Card | None) -> Section:
    advice = verdict.next_step
    return Section(
        "verdict",
        "Verdict",
        verdict.headline,
        facts=() if card is None else tuple(facts(card)),
        paragraphs=(*verdict.sentences, *([advice.advice] if advice.advice else [])),
        preformatted=(printable(advice.command),) if advice.command else (),
    )


def incidents(result: RunResult) -> Iterator[Section]:
    """Yields the section on incidents, if there are any."""
    if found := incidents_table.sentences(result.incidents):
        yield Section(
            "incidents",
            incidents_table.TITLE,
            bullets=tuple(found),
            legend=incidents_table.LEGEND,
        )


def _named_causes(result: RunResult) -> Iterator[Section]:
    if found := named_causes.blocks(result.worlds, 100):
        *lines, legend = found
        yield Section("fixes", named_causes.TITLE, preformatted=tuple(lines), legend=legend)


def _notes(result: RunResult) -> Iterator[Section]:
    if found := notes(result):
        yield Section("notes", "Caveats", bullets=tuple(found))


def pictures() -> Iterator[Section]:
    """Yields the sections whose pictures show single steps."""
    yield Section(
        "steps",
        "Step by step",
        legend="Wall time of the slowest rank. Choose a step to see it in the timeline.",
        stands_alone=False,
    )
    yield _timeline()


def _timeline() -> Section:
    return Section("timeline", "Timeline of the collectives", legend=_TIMELINE, stands_alone=False)


def _of_all_worlds(report: FullReport) -> Iterator[Section]:
    result = report.result
    bindings = report.verdict.bindings if report.verdict is not None else ()
    yield Section(
        "step",
        "Where each step goes",
        grids=(("Mean step in ms, by ranks", parts_grid(result)),),
        bullets=tuple(map(_binding, bindings)),
        legend=parts_legend(result.worlds),
    )
    if (won := gains_grid(result.worlds)) is not None:
        grids = (("Mean step with one change", won),)
        yield Section("gains", GAINS_TITLE, grids=grids, legend=GAINS_LEGEND)
    if (kernels := devices_table.kernel_times_grid(result.worlds)) is not None:
        grids = (("Mean step in ms, by rank", kernels),)
        yield Section(
            "kernels", devices_table.KERNEL_TITLE, grids=grids, legend=devices_table.KERNEL_LEGEND
        )
    yield _scaling(report)
    if (links := host_links_table.host_links_grid(result.worlds)) is not None:
        yield Section(
            "hosts",
            host_links_table.TITLE,
            grids=(("By ranks", links),),
            bullets=tuple(host_links_table.notes(result.worlds)),
            legend=host_links_table.LEGEND,
        )
    memory = memory_table.memory_grid(result.worlds)
    if memory is not None:
        grids = (("Memory in MB, by ranks", memory),)
        yield Section("memory", "Memory", grids=grids, legend=memory_table.LEGEND)
    if (devices := devices_table.grid(result.worlds)) is not None:
        grids = (("GPU of each rank, largest world size", devices),)
        yield Section("devices", "GPUs", grids=grids, legend=devices_table.LEGEND)
    yield from pictures()
    waiting = [
        (f"{detail.world_size} ranks", grid)
        for detail in report.details
        if (grid := waiting_grid(detail)) is not None
    ]
    if (causes := causes_grid(result.worlds)) is not None:
        grids = (("Waiting per step in ms, by rank and cause", causes),)
        yield Section("causes", CAUSES_TITLE, grids=grids, legend=CAUSES_LEGEND)
    if waiting:
        yield Section("waiting", "Who waits for whom", grids=tuple(waiting), legend=WAITING_LEGEND)


def _scaling(report: FullReport) -> Section:
    grids, legend = [("By ranks", scaling_grid(report.result))], SCALING_LEGEND
    if report.predictions is not None:
        grids.append((predicted_table.CAPTION, predicted_table.predicted_grid(report.predictions)))
        legend += "\n" + predicted_table.legend(report.predictions)
    return Section("scaling", "Scaling", grids=tuple(grids), legend=legend)


def _collectives(anchor: str, world: WorldResult | SteplessCollectives) -> Section:
    titled = collectives_table.title_of(world)
    return Section(
        anchor,
        "Collectives",
        grids=((titled, collectives_table.collectives_grid(world, _MOST_ROWS)),),
        bullets=tuple(collectives_table.notes(world, _MOST_ROWS)),
        legend=collectives_table.LEGEND,
    )


def _nccl(found: NcclWorld) -> Iterator[Section]:
    caption = f"Operations of {counted(found.world_size, 'rank')}"
    yield Section(
        f"nccl-{found.world_size}",
        nccl_table.TITLE,
        grids=((caption, nccl_table.operations(found)),),
        bullets=tuple(nccl_table.notes(found)),
        legend=nccl_table.LEGEND,
    )
    if found.links:
        yield Section(
            f"nccl-links-{found.world_size}",
            "Links of NCCL",
            grids=(("Sends by NCCL's proxy", nccl_table.links(found)),),
            bullets=tuple(nccl_table.link_notes(found)),
            legend=nccl_table.SPLIT_LEGEND,
        )


def _of_last_world(world: WorldResult) -> Iterator[Section]:
    ranks = counted(world.world_size, "rank")
    if world.communication.collectives:
        yield _collectives("collectives", world)
    if world.communication.compression:
        yield Section(
            "compression",
            "Gradient compression",
            grids=(
                (
                    f"Compressed buckets of {ranks}",
                    compression_table.compression_grid(world, _MOST_ROWS),
                ),
            ),
            bullets=tuple(compression_table.notes(world, _MOST_ROWS)),
            legend=compression_table.LEGEND,
        )
    if world.cross_checks:
        yield Section(
            "checks",
            "Cross-checks",
            grids=((f"{ranks}", cross_checks_grid(world)),),
            legend=CHECKS_LEGEND,
        )


def own_cost(report: FullReport) -> Iterator[Section]:
    """Yields the section on commprof's own cost, if it was measured."""
    result = report.result
    measured = [(counted(w.world_size, "rank"), w.profiler_cost.overhead) for w in result.worlds]
    rows = [
        _overhead(name, clock, cost)
        for name, overhead in [*measured, ("all", result.overhead)]
        if overhead is not None
        for clock, cost in (("CPU", overhead.cpu), ("wall", overhead.wall))
        if cost is not None
    ]
    if not rows:
        return
    headers = (
        "ranks",
        "clock",
        "recording overhead",
        "control",
        "steps on",
        "steps off",
        "significant",
    )
    yield Section(
        "own-cost",
        "Overhead of commprof",
        grids=(
            (
                "Step time with capture on / adjacent step time with capture off, less 1 [95 %]",
                Grid(rows, headers),
            ),
        ),
        legend="After the measured steps, capture was switched on and off repeatedly. control: the "
        "same figure for pairs of steps that both have capture off; its true value is 0. CPU: CPU "
        "time of all ranks' training threads; wall: wall time of the slowest rank. not measurable: "
        f"an end of the interval is more than {MOST_REACH:.0%} away from the estimate.",
    )


def _overhead(name: str, clock: str, cost: OwnCost) -> tuple[str, ...]:
    ratios = (cost.on_over_off, cost.control)
    percents = [
        f"{(x.value - 1) * 100:+.1f} % [{(x.low - 1) * 100:+.1f}, {(x.high - 1) * 100:+.1f}]"
        for x in ratios
    ]
    distinguishable = "yes" if cost.told_apart else "no" if cost.measurable else "not measurable"
    return (name, clock, *percents, str(cost.steps_on), str(cost.steps_off), distinguishable)


def _binding(binding: Binding) -> str:
    if not binding.largest:
        return f"{counted(binding.world_size, 'rank')}: what bounds the step is not known."
    (first, share), (second, other) = binding.largest
    if binding.part is None:
        return (
            f"{counted(binding.world_size, 'rank')}: {first} {share:.1%} and {second} {other:.1%}; "
            "the difference is not significant."
        )
    return f"{counted(binding.world_size, 'rank')}: bound by {first}, {share:.1%} of the mean step."
