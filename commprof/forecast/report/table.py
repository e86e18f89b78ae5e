"""Rendering of predictions as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from commprof.forecast.fit.held_out import HeldOutCheck, ModelError
from commprof.forecast.report import search as prediction_search
from commprof.forecast.report.cells import (
    ms,
    optional,
    scenario_cells,
    sharded_cells,
    within,
    within_if_wide,
)
from commprof.forecast.scenario.scenario import STRONG, Prediction
from commprof.forecast.what_if.answers import Answer, Answers
from commprof.report.predicted_words import bracketed
from commprof.report.tabulated import tabulated, three_digits
from commprof.text import plain_digits, printable

_CHECKED = """\
step: median of the slowest rank, with its 95 % interval in brackets. The interval covers sampling,
the fit, and the model's errors on held-out settings; it is wider if few settings were held out. The
intervals of samples/s and efficiency follow from that of the step."""
_NOT_CHECKED = """\
step: median of the slowest rank, with a range in parentheses. The range covers only sampling and
fit; real steps can lie outside of it, because the model's own error is not known. The ranges of
samples/s and efficiency follow from that of the step."""
_LEGEND = """\
exposed = wait (for the last rank) + transfer, in ms. hidden: communication during compute, in ms.
Ranges of wait, transfer and hidden cover only sampling and fit; a range that rounds to one value is
not shown. bounds: step with all communication hidden, and with none hidden. efficiency: a rank's
own work divided by the step. to hide: link rate that is needed to hide all buckets but the last. ~:
the model is not clearly better than an answer without a model, see below; *: outside the measured
range, see below."""

_SCENARIO = ("ranks", "link\nGbit/s", "\nµs", "cap\nMiB", "hook")
_SHARDED = (
    *_SCENARIO[:3],
    *("shard\nranks", "wrapped\nblocks", "passes", "re-\nshard", "gather", "reduce"),
)
_HEADERS = (
    *("step ms", "exposed:\nwait", "\n+ transfer", "hidden", "bounds\nms"),
    *("samples\n/s", "effi-\nciency", "sent MB\n/step", "to hide\nGbit/s"),
)


def render(
    answers: Answers,
    base: str,
    source: str,
    refused: Sequence[str],
    width: int,
    tables: int | None = None,
) -> str:
    """Renders the answers, the model's error, and notes.

    Args:
        answers: the answers to render.
        base: name of the recorded steps that the predictions start from.
        source: where the cost model comes from, such as a machine profile.
        refused: reasons why recorded world sizes were left out.
        width: largest number of characters in a line of text.
        tables: largest number of characters in a line of a table; None for no limit.
    """
    checked = answers.error is not None
    rows = [_cells(answer, answers) for answer in answers.answers]
    parts = [
        f"Predicted from {printable(base)}; costs: {printable(source)}.",
        *_setting(answers, width),
        _table(rows, answers.is_sharded, tables),
        textwrap.fill(f"{_CHECKED if checked else _NOT_CHECKED} {_LEGEND}", width),
        _held_out(answers, width, tables),
    ]
    parts += list(_costs(answers, tables))
    parts += [
        prediction_search.render(
            answer.search, answer.prediction.scenario.world_size, answers.error, width, tables
        )
        for answer in answers.answers
        if answer.search is not None
    ]
    parts += list(_lines(answers, refused, width))
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[tuple[str, ...]], is_sharded: bool, tables: int | None) -> str:
    scenario, calls = (_SHARDED, "calls") if is_sharded else (_SCENARIO, "buckets")
    left = [] if is_sharded else [4]
    return tabulated(rows, (*scenario, calls, *_HEADERS), left, tables)


def _cells(answer: Answer, answers: Answers) -> tuple[str, ...]:
    prediction = answer.prediction
    scenario, waiting, interval = prediction.scenario, prediction.waiting, answer.interval_s
    error = answers.error
    checked = error is not None
    star = "*" if prediction.outside else ""
    within_ms = ms(interval.low), ms(interval.high)
    doubt = " ~" if error is not None and not error.is_skilled else ""
    return (
        *(sharded_cells(scenario) if answers.is_sharded else scenario_cells(scenario)),
        str(prediction.buckets),
        f"{ms(interval.value)}{star} {bracketed(*within_ms, checked)}{doubt}",
        *(
            within_if_wide(estimate, ms)
            for estimate in (waiting.wait_s, waiting.transfer_s, waiting.hidden_s)
        ),
        f"{ms(prediction.perfect_overlap_s)}-{ms(prediction.no_overlap_s)}",
        within(answer.samples_per_s, three_digits, checked),
        within(answer.efficiency, "{:.1%}".format, checked),
        three_digits(prediction.sent_bytes / 1e6),
        three_digits(prediction.hiding_bytes_per_s * 8e-9),
    )


def _setting(answers: Answers, width: int) -> Iterator[str]:
    if not answers.answers:
        return
    scenario = answers.answers[0].prediction.scenario
    per_host, cores = scenario.ranks_per_host, scenario.cores_per_host
    batch = "global batch" if scenario.scaling == STRONG else "batch per rank"
    hosts = "as run" if math.isnan(per_host) else f"{per_host:g}"
    text = f"{scenario.scaling.capitalize()} scaling (fixed {batch}), {scenario.algorithm} "
    text += "rings" if answers.is_sharded else "all-reduce"
    text += f", ranks per host: {hosts}, cores per host: {optional(cores, 1)}."
    yield textwrap.fill(text, width)


def _held_out(answers: Answers, width: int, tables: int | None) -> str:
    if not answers.checks:
        return "No recorded step could be checked against the model."
    table = tabulated(
        [_check(check) for check in answers.checks],
        (
            "recorded",
            "ranks",
            "measured\nms",
            "predicted\nms",
            "error",
            "no\noverlap",
            "perfect\noverlap",
            "as it\nis now",
        ),
        left=[0],
        width=tables,
    )
    if answers.error is None:
        text = (
            "Held-out error: not known, because no recorded steps were held out of the model. A "
            "real step can lie outside of the ranges in parentheses. Record another world size, "
            "or give further runs with --check."
        )
    else:
        error = answers.error
        points = "1 held-out setting" if error.points == 1 else f"{error.points} held-out settings"
        text = (
            f"Held-out error of this model on this machine: {error.mean:.1%} on average, "
            f"{error.worst:.1%} at worst, over {points}. {_skill(error)}"
        )
    return f"{table}\n{textwrap.fill(text, width)}"


def _skill(error: ModelError) -> str:
    named = {"as_is_s": "the step as it is now", "perfect_overlap_s": "perfect overlap"}
    text = "Two trivial answers need no model: the step as it is now, and perfect overlap. The "
    text += f"better of the two, {named[error.trivial]}, differs from the measured "
    text += f"{'step' if error.points == 1 else 'steps'} by {error.trivial_mean:.1%}"
    text += "" if error.points == 1 else " on average"
    if error.is_skilled:
        return f"{text}."
    return (
        f"{text}. The model is not clearly better, so steps marked ~ say little more than this "
        "trivial answer."
    )


def _check(check: HeldOutCheck) -> tuple[str, ...]:
    bounds = (check.no_overlap_s, check.perfect_overlap_s, check.as_is_s)
    return (
        printable(check.name) if check.held_out else f"{printable(check.name)} (not held out)",
        str(check.world_size),
        ms(check.measured_s),
        ms(check.predicted_s),
        f"{check.error:+.1%}",
        *(f"{bound / check.measured_s - 1:+.1%}" for bound in bounds),
    )


def _costs(answers: Answers, tables: int | None) -> Iterator[str]:
    shown = answers.answers
    is_priced = any(answer.cost is not None for answer in shown)
    if not is_priced and all(math.isnan(answer.epoch_sent_bytes) for answer in shown):
        return
    money = ("hosts", "cost per\n1,000 samples", "\nper epoch") if is_priced else ()
    rows = [_cost(answer, is_priced, answers.is_sharded) for answer in shown]
    left = [] if answers.is_sharded else [4]
    scenario = _SHARDED if answers.is_sharded else _SCENARIO
    yield tabulated(rows, (*scenario, *money, "sent by a rank\nGB/epoch"), left, tables)


def _cost(answer: Answer, is_priced: bool, is_sharded: bool) -> tuple[str, ...]:
    cost = answer.cost
    money: tuple[str, ...] = ("-", "-", "-") if is_priced else ()
    if cost is not None:
        money = (str(cost.hosts), _known(cost.per_1000_samples), _known(cost.per_epoch))
    sent = three_digits(answer.epoch_sent_bytes / 1e9)
    cells = sharded_cells if is_sharded else scenario_cells
    return (*cells(answer.prediction.scenario), *money, sent)


def _known(value: float) -> str:
    return "-" if math.isnan(value) else plain_digits(value, 4)


def _lines(answers: Answers, refused: Sequence[str], width: int) -> Iterator[str]:
    if answers.amdahl is not None:
        fit = answers.amdahl
        points = ", ".join(
            f"{ranks}: {measured:.2f} ({residual:+.1%})"
            for (ranks, measured, _), residual in zip(fit.points, fit.residuals, strict=True)
        )
        limit = "has no limit" if math.isinf(fit.limit) else f"is at most {fit.limit:.3g}"
        text = (
            f"Amdahl's law, fitted to the measured throughput: {fit.parallel:.1%} of the work is "
            f"divided among ranks, so the speed-up {limit}. Measured speed-up by ranks, with the "
            f"fit's residual: {points}."
        )
        yield textwrap.fill(text, width)
    predictions = [answer.prediction for answer in answers.answers]
    bullets = [f"* Outside the measured range{reason}" for reason in _outside(predictions)]
    bullets += [f"- {text}." for text in _unique(t for p in predictions for t in p.remarks)]
    bullets += [f"- {text}." for text in (*answers.notes, *refused)]
    if bullets:
        yield "\n".join(
            textwrap.fill(printable(text), width, subsequent_indent="  ", break_long_words=False)
            for text in bullets
        )


def _outside(predictions: Sequence[Prediction]) -> Iterator[str]:
    for reason in _unique(text for prediction in predictions for text in prediction.outside):
        yield f": {reason}."


def _unique(texts: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(texts))
