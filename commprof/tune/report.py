"""Writes the report of a trial as text, Markdown, HTML, tables and JSON.

``docs/trials.md`` describes the JSON.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from commprof.analysis.detail import PARTS
from commprof.report.export.rows import CANDIDATES
from commprof.report.html.data import page_label, page_number, page_parts
from commprof.report.one_screen import LINES, WIDTH, command_lines, cut, prose, table_lines
from commprof.report.section import Section
from commprof.report.tabulated import Grid, tabulated, three_digits
from commprof.stats.intervals import Interval
from commprof.text import counted, fitted, plain_digits, printable, wrapped
from commprof.tune.trials.result import CandidateResult, TrialResult

_HEADERS = (
    *("candidate", "step\nms [95 %]", "over none\n[95 %]", "exposed\nms", "encode\nms"),
    *("decode\nms", "sent\nMB", "held\nMB", "gradient\nerror", "cosine", "loss\n[95 %]"),
    "pays below\nGbit/s [95 %]",
)
LEGEND = """\
step: median step of a block on the slowest rank (Hodges-Lehmann estimate over the rounds).
over none: this step divided by the step of the baseline `none`, paired by round.
exposed: time for which the training thread waited for communication. encode (with reduce), decode:
time on the compressor's thread. sent: data that a rank sends per step. held: gathered parameters
that a rank keeps at most beyond those with `none`, computed from their sizes. gradient error:
relative error of the sent values, by default in the first step of each block. loss: mean over the
block without its first step, compared with the loss of `none`. `none again` runs `none` a second
time, to show differences by chance. `noop` exchanges nothing. After each block of `noop`, or of a
candidate that changes any bit of the gradients, the state from before the block is restored."""

_OVERHEAD_HEADERS = ("techniques", "", "overhead less by\n[95 %]", "speed-up\n[95 %]")
OVERHEAD_LEGEND = """\
overhead: a candidate's step time minus the step time of `noop`, which exchanges nothing. overhead
less by: how much smaller the candidate's overhead is than that of the baseline `none`, in percent.
speed-up: step time of `none` divided by the candidate's step time. All step times are of this
run."""


def render(
    trial: TrialResult,
    description: str,
    width: int,
    remarks: Sequence[str] = (),
    tables: int | None = None,
) -> str:
    """Renders a trial as text, with ``remarks`` on the run at the end.

    Prose is wrapped to ``width`` columns. Tables wider than ``tables`` columns are split; None
    turns the splitting off.
    """
    blocks = ["\n".join(wrapped(line, width) for line in (description, setup(trial)))]
    blocks.append("\n".join(wrapped(said, width) for said in trial.verdict.sentences))
    if trial.verdict.apply:
        blocks.append(f"To apply it:\n  {printable(trial.verdict.apply)}")
    if trial.rounds:
        blocks += [tabulated(*candidates_grid(trial), width=tables), fitted(LEGEND, width)]
        if overhead := overhead_grid(trial):
            blocks += [tabulated(*overhead, width=tables), fitted(OVERHEAD_LEGEND, width)]
    if found := [*notes(trial), *remarks]:
        blocks.append("\n".join(wrapped(note, width, "* ", "  ") for note in found))
    return "\n\n".join(blocks) + "\n"


def setup(trial: TrialResult) -> str:
    """Describes how a trial was done."""
    return (
        f"Trial at {trial.world_size} ranks: {trial.rounds} of {trial.planned_rounds} rounds. Each "
        f"round runs one block per candidate in shuffled order: {trial.warmup_steps} warm-up "
        f"steps, then {trial.block_steps} measured steps."
    )


def notes(trial: TrialResult) -> list[str]:
    """Returns the caveats of a trial, in sentences."""
    found = [f"{label} was left out: {why}." for label, why in trial.left_out]
    found += [
        f"{one.label} is never recommended: {one.barred}." for one in trial.candidates if one.barred
    ]
    found += [_settling(one, trial) for one in trial.candidates if one.settles]
    found += _without_break_even(trial) if trial.rounds else []
    if not math.isnan(trial.link_gbit_per_s):
        found.append(
            f"While the baseline `none` was communicating, a rank sent "
            f"{three_digits(trial.link_gbit_per_s)} Gbit/s."
        )
    return found


def _settling(one: CandidateResult, trial: TrialResult) -> str:
    return (
        f"{one.label} was still settling after a switch: the second half of its measured steps "
        f"took {_interval(one.later_over_earlier, 1, 3)} times as long as the first half, so in a "
        f"long run its step is shorter than shown; try warmup={3 * trial.warmup_steps}."
    )


def _without_break_even(trial: TrialResult) -> list[str]:
    labels: dict[str, list[str]] = {}
    for one in trial.candidates:
        if one.break_even is None and (why := one.no_break_even) is not None:
            labels.setdefault(f"{why.answer}, since {why.reason}", []).append(one.label)
    return [f'"pays below" for {" and ".join(names)}: {why}.' for why, names in labels.items()]


def candidates_grid(trial: TrialResult) -> Grid:
    """Makes a table with a row per candidate, without the columns that hold only "-"."""
    rows = [_row(one) for one in trial.candidates]
    kept = [i for i in range(len(_HEADERS)) if i == 0 or any(row[i] != "-" for row in rows)]
    return Grid([[row[i] for i in kept] for row in rows], [_HEADERS[i] for i in kept], [0])


def _row(one: CandidateResult) -> tuple[str, ...]:
    return (
        printable(one.label),
        _step(one),
        _interval(one.ratio, 1, 3),
        three_digits(one.exposed_ms),
        three_digits(one.encode_ms + one.reduce_ms),
        three_digits(one.decode_ms),
        three_digits(one.wire_bytes / 1e6),
        three_digits(one.held_bytes / 1e6) if one.held_bytes else "-",
        "0" if one.exact and one.role == "candidate" else three_digits(one.relative_error),
        "-" if math.isnan(one.cosine) else f"{one.cosine:.4f}",
        _interval(one.loss_effect, 100, 1, "%"),
        _pays(one),
    )


def _step(one: CandidateResult) -> str:
    found = one.step_ms_interval
    if found is None:
        return three_digits(one.step_ms)
    value, low, high = (plain_digits(x, 4) for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _pays(one: CandidateResult) -> str:
    found = one.break_even
    if found is None:
        return "-" if one.no_break_even is None else one.no_break_even.answer
    if found.gbit_per_s is None:
        return found.pays
    bounds = found.gbit_per_s
    return f"{three_digits(bounds.value)} [{_bound(bounds.low)}, {_bound(bounds.high)}]"


def _bound(value: float) -> str:
    return "any" if math.isinf(value) else three_digits(value)


def overhead_grid(trial: TrialResult) -> Grid | None:
    """Makes a table of techniques, alone and combined; None if no overhead could be measured."""
    shown = [one for one in trial.candidates if one.overhead_reduction is not None]
    if not shown:
        return None
    rows = [
        (
            printable(one.label),
            "alone" if one.techniques == 1 else "combined",
            _interval(one.overhead_reduction, 100, 0, "%"),
            _speedup(one.ratio),
        )
        for one in sorted(shown, key=lambda one: one.techniques)
    ]
    return Grid(rows, _OVERHEAD_HEADERS, [0, 1])


def _speedup(ratio: Interval | None) -> str:
    if ratio is None:
        return "-"
    return _interval(Interval(1 / ratio.value, 1 / ratio.high, 1 / ratio.low), 1, 2)


def _interval(found: Interval | None, scale: float, digits: int, unit: str = "") -> str:
    if found is None:
        return "-"
    value, low, high = (f"{x * scale:.{digits}f}" for x in (found.value, found.low, found.high))
    return f"{value}{unit} [{low}, {high}]"


#: Columns of the one-screen report, by the first line of their headers. If the table is too wide,
#: its last columns are dropped.
_COLUMNS = ("candidate", "step", "over none", "pays below")
#: Largest number of lines of the verdict in the one-screen report.
_MOST_SENTENCES = 9


def render_screen(trial: TrialResult, description: str, all_command: str, remarks: int = 0) -> str:
    """Renders a trial on one screen: at most 24 lines of 80 columns.

    Args:
        trial: result of the trial.
        description: description of the workload.
        all_command: command that prints the full report.
        remarks: number of remarks on the run in the full report.
    """
    said = [line for sentence in trial.verdict.sentences for line in prose(sentence)]
    if len(said) > _MOST_SENTENCES:
        said = [*said[: _MOST_SENTENCES - 1], f"{said[_MOST_SENTENCES - 1][: WIDTH - 4]} ..."]
    apply = command_lines(trial.verdict.apply) if trial.verdict.apply else []
    top = [cut(description), *prose(setup(trial)), *said]
    top += ["To apply it:", *apply] if apply else []
    caveats = len(notes(trial)) + remarks
    bottom = [f"! {counted(caveats, 'caveat')}: see --all"] if caveats else []
    bottom += ["Next, to see the full report:", *command_lines(all_command)]
    space = LINES - len(top) - len(bottom) if trial.rounds else 0
    table = table_lines(candidates_grid(trial), _COLUMNS, space, "candidate")
    return "\n".join([*top, *table, *bottom]) + "\n"


def trial_dict(trial: TrialResult) -> dict[str, Any]:
    """Returns the trial's fields as a dictionary, with each candidate's gain."""
    return {
        **dataclasses.asdict(trial),
        "candidates": [
            {**dataclasses.asdict(one), "gain": one.gain and dataclasses.asdict(one.gain)}
            for one in trial.candidates
        ],
        "left_out": [{"candidate": label, "reason": why} for label, why in trial.left_out],
    }


@dataclasses.dataclass(frozen=True)
class TrialReport:
    """A trial as a part of a run's report; see ``commprof.satellites.AddedReport``."""

    trial: TrialResult
    key: str = "trial"
    table_name: str = CANDIDATES

    def plain(self) -> dict[str, Any]:
        """Returns the trial's fields, with each candidate's gain."""
        return trial_dict(self.trial)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields a row per candidate."""
        return candidate_rows(self.trial)

    def screen(self, description: str, all_command: str, caveats: int) -> str:
        """Renders the trial on one screen: at most 24 lines of 80 columns."""
        return render_screen(self.trial, description, all_command, caveats)

    def text(self, description: str, width: int, caveats: list[str], tables: int | None) -> str:
        """Renders verdict, tables and caveats for the terminal."""
        return render(self.trial, description, width, caveats, tables)

    def section(self) -> Section:
        """Returns the trial's section, which the Markdown report and the HTML page show."""
        trial, grids, legend = self.trial, [], ""
        if trial.rounds:
            grids = [(setup(trial).removesuffix("."), candidates_grid(trial))]
            legend = LEGEND
            if overhead := overhead_grid(trial):
                grids.append(("Each technique alone and combined", overhead))
                legend += "\n" + OVERHEAD_LEGEND
        lead, *more = trial.verdict.sentences
        apply = f"To apply it: {trial.verdict.apply}"
        return Section(
            "trial",
            "Trial",
            lead,
            paragraphs=(*more, *([apply] if trial.verdict.apply else [])),
            grids=tuple(grids),
            bullets=tuple(notes(trial)),
            legend=legend,
        )

    def pictures(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the data of the page's pictures.

        ``trial`` holds a row per compared candidate. ``baseline`` holds a row with the parts of the
        baseline's step in ms, or no row if the trial has no parts.
        """
        compared = [
            {
                "label": page_label(candidate.label),
                "role": candidate.role,
                "step_ms": page_number(candidate.step_ms),
                **{
                    name: page_number(bound)
                    for name, bound in dataclasses.asdict(candidate.ratio).items()
                },
            }
            for candidate in self.trial.candidates
            if candidate.ratio is not None
        ]
        return {"trial": compared, "baseline": self._baseline()}

    def _baseline(self) -> list[dict[str, Any]]:
        if not self.trial.parts:
            return []
        baseline = self.trial.of_role("baseline")
        recorded = {f"{share.part}_ms": share.ms for share in self.trial.parts}
        whole = {"step_ms": sum(recorded.values()), "hidden_ms": baseline.hidden_ms}
        parts = dict.fromkeys((f"{name}_ms" for name in (*PARTS, "unsplit")), 0.0)
        return [{"label": page_label(baseline.label), **page_parts(-1, parts | recorded | whole)}]


_PLAIN = (
    *("role", "techniques", "exact", "compresses", "exposed_ms", "hidden_ms", "encode_ms"),
    *("reduce_ms", "decode_ms", "wire_bytes", "held_bytes", "relative_error", "cosine"),
)
_INTERVALS = ("ratio", "joint_ratio", "loss_effect", "overhead_reduction")


def candidate_rows(trial: TrialResult) -> Iterator[dict[str, Any]]:
    """Yields a row per candidate, in planned order.

    The bounds of a figure's interval are named after the figure: ``*_low`` and ``*_high``.
    """
    for one in trial.candidates:
        yield {
            "world_size": trial.world_size,
            "rounds": trial.rounds,
            "candidate": one.label,
            **_figures(one),
        }


def _figures(one: CandidateResult) -> dict[str, Any]:
    row = {name: getattr(one, name) for name in _PLAIN}
    step = one.step_ms_interval or Interval(one.step_ms, math.nan, math.nan)
    row |= _bounds("step_ms", step)
    for name in _INTERVALS:
        row |= _bounds(name, getattr(one, name))
    pays, why = one.break_even, one.no_break_even
    row["pays"] = "" if pays is None else pays.pays
    row["no_break_even"] = "" if pays or why is None else f"{why.answer}, since {why.reason}"
    row["barred"] = one.barred
    return row | _bounds("pays_below_gbit_per_s", None if pays is None else pays.gbit_per_s)


def _bounds(name: str, found: Interval | None) -> dict[str, float]:
    value, low, high = (math.nan,) * 3 if found is None else dataclasses.astuple(found)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
