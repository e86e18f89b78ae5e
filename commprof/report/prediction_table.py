"""Predictions as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence

from commprof.predict.answers import Answer, Answers
from commprof.predict.held_out import Check
from commprof.predict.optimize import Candidate
from commprof.predict.scenario import STRONG, Estimate, Prediction, Scenario
from commprof.report.plain_text import printable
from commprof.report.tabulated import tabulated, three_digits

_LEGEND = """\
step: median of the slowest rank [interval: 95 % of sampling and fit, widened by the model's worst
held-out error]; samples/s and efficiency have the interval that follows from it. exposed = wait
(for the last rank) + wire; hidden: communication under backward. bounds: all communication hidden,
none hidden. efficiency: a rank's own work over the step. to hide: what a link must carry so that
all buckets but the last are hidden.
*: outside the measured range, see below."""

_SCENARIO = ("ranks", "link\nGbit/s", "\nµs", "cap\nMiB", "hook")
_HEADERS = (
    *(*_SCENARIO, "buckets", "step ms"),
    *("exposed:\nwait", "\n+ wire", "hidden", "bounds\nms", "samples\n/s", "effi-\nciency"),
    *("sent MB\n/step", "to hide\nGbit/s"),
)
_MOST_CANDIDATES = 5


def render(
    answers: Answers,
    base: str,
    source: str,
    refused: Sequence[str],
    width: int,
    tables: int | None = None,
) -> str:
    """The table, the model's error, and what the reader must know; see ``tabulated`` for widths."""
    rows = [_cells(each) for each in answers.answers]
    parts = [
        f"Predicted from {printable(base)}; costs: {printable(source)}.",
        *_setting(answers, width),
        tabulated(rows, _HEADERS, [4], tables),
        textwrap.fill(_LEGEND, width),
        _held_out(answers, width, tables),
    ]
    parts += list(_costs(answers, tables))
    parts += [_candidates(each, width, tables) for each in answers.answers if each.candidates]
    parts += list(_lines(answers, refused, width))
    return "\n\n".join(parts) + "\n"


def _cells(answer: Answer) -> tuple[str, ...]:
    found = answer.prediction
    scenario, interval = found.scenario, answer.interval_s
    star = "*" if found.outside else ""
    return (
        *_scenario(scenario),
        str(found.buckets),
        f"{_ms(interval.value)}{star} [{_ms(interval.low)}, {_ms(interval.high)}]",
        _ms(found.wait_s),
        _ms(found.wire_s),
        _ms(found.hidden_s),
        f"{_ms(found.perfect_overlap_s)}-{_ms(found.no_overlap_s)}",
        _within(answer.samples_per_s, three_digits),
        _within(answer.efficiency, "{:.1%}".format),
        three_digits(found.sent_bytes / 1e6),
        three_digits(found.hiding_bytes_per_s * 8e-9),
    )


def _scenario(scenario: Scenario) -> tuple[str, ...]:
    return (
        str(scenario.world_size),
        _optional(scenario.bandwidth_bytes_per_s, 8e-9),
        _optional(scenario.latency_s, 1e6),
        _cap(scenario),
        _hook(scenario),
    )


def _within(found: Estimate, text: Callable[[float], str]) -> str:
    if math.isnan(found.value):
        return text(found.value)
    return f"{text(found.value)} [{text(found.low)}, {text(found.high)}]"


def _setting(answers: Answers, width: int) -> Iterator[str]:
    """What all scenarios share, because one command states it for all."""
    if not answers.answers:
        return
    scenario = answers.answers[0].prediction.scenario
    per_host, cores = scenario.ranks_per_host, scenario.cores_per_host
    batch = "global batch" if scenario.scaling == STRONG else "batch per rank"
    hosts = "as run" if math.isnan(per_host) else f"{per_host:g}"
    text = f"{scenario.scaling.capitalize()} scaling (the {batch} stays), {scenario.algorithm} "
    text += f"all-reduce, ranks per host: {hosts}, cores per host: {_optional(cores, 1)}."
    yield textwrap.fill(text, width)


def _held_out(answers: Answers, width: int, tables: int | None) -> str:
    """What the model is wrong by; or how to find out."""
    if not answers.checks:
        return "No recorded step could be checked against the model."
    table = tabulated(
        [_check(each) for each in answers.checks],
        (
            "recorded",
            "ranks",
            "measured\nms",
            "predicted\nms",
            "error",
            "no\noverlap",
            "perfect\noverlap",
        ),
        left=[0],
        width=tables,
    )
    if answers.error is None:
        text = (
            "Held-out error: not known, because nothing was recorded that the model was not made "
            "of, and intervals hold sampling and fit alone. Record another world size, or give "
            "further runs with --check."
        )
    else:
        error = answers.error
        points = "1 held-out setting" if error.points == 1 else f"{error.points} held-out settings"
        text = (
            f"Held-out error of this model on this machine: {error.mean:.1%} in the mean, "
            f"{error.worst:.1%} at worst, of {points}. The bounds' errors stand beside it."
        )
    return f"{table}\n{textwrap.fill(text, width)}"


def _check(found: Check) -> tuple[str, ...]:
    bounds = (found.no_overlap_s, found.perfect_overlap_s)
    return (
        printable(found.name) if found.held_out else f"{printable(found.name)} (not held out)",
        str(found.world_size),
        _ms(found.measured_s),
        _ms(found.predicted_s),
        f"{found.error:+.1%}",
        *(f"{bound / found.measured_s - 1:+.1%}" for bound in bounds),
    )


def _costs(answers: Answers, tables: int | None) -> Iterator[str]:
    """Money and bytes, a row per scenario; nothing where neither is known."""
    shown = answers.answers
    is_priced = any(each.cost is not None for each in shown)
    if not is_priced and all(math.isnan(each.epoch_sent_bytes) for each in shown):
        return
    money = ("hosts", "cost per\n1,000 samples", "\nper epoch") if is_priced else ()
    rows = [_cost(each, is_priced) for each in shown]
    yield tabulated(rows, (*_SCENARIO, *money, "sent by a rank\nGB/epoch"), [4], tables)


def _cost(answer: Answer, is_priced: bool) -> tuple[str, ...]:
    found = answer.cost
    money: tuple[str, ...] = ("-", "-", "-") if is_priced else ()
    if found is not None:
        money = (str(found.hosts), _known(found.per_1000_samples), _known(found.per_epoch))
    sent = three_digits(answer.epoch_sent_bytes / 1e9)
    return (*_scenario(answer.prediction.scenario), *money, sent)


def _known(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _candidates(answer: Answer, width: int, tables: int | None) -> str:
    rows = [
        (
            _cap(each.prediction.scenario),
            _hook(each.prediction.scenario),
            f"{_ms(each.prediction.step_s.value)}{'*' if each.prediction.outside else ''}",
            f"{each.gain:+.1%} [{each.gain_low:+.1%}, {each.gain_high:+.1%}]",
            f"{each.certainty:.0%}",
        )
        for each in answer.candidates[:_MOST_CANDIDATES]
    ]
    table = tabulated(rows, ("cap MiB", "hook", "step ms", "gain", "certainty"), [1], tables)
    ranks = answer.prediction.scenario.world_size
    return f"Settings at {ranks} ranks, the best first:\n{table}\n" + textwrap.fill(
        _verdict(answer.candidates), width
    )


def _verdict(candidates: Sequence[Candidate]) -> str:
    best = candidates[0]
    if best.gain_low <= 0:
        return (
            "No setting is certain to gain anything: each one's interval includes no gain, before "
            "the model's own error."
        )
    scenario = best.prediction.scenario
    what = f"bucket cap {_cap(scenario)}, hook {_hook(scenario)}"
    return (
        f"Best: {what}. It saves {best.gain:.1%} of the step [{best.gain_low:.1%}, "
        f"{best.gain_high:.1%}], before the model's own error."
    )


def _lines(answers: Answers, refused: Sequence[str], width: int) -> Iterator[str]:
    if answers.amdahl is not None:
        fit = answers.amdahl
        points = ", ".join(
            f"{ranks}: {measured:.2f} ({residual:+.1%})"
            for (ranks, measured, _), residual in zip(fit.points, fit.residuals, strict=True)
        )
        limit = "no limit" if math.isinf(fit.limit) else f"at most {fit.limit:.3g}"
        text = (
            f"Amdahl's law through the measured throughput: {fit.parallel:.1%} of the work is "
            f"divided among ranks, speed-up {limit}. Speed-up by ranks, with the fit's residual: "
            f"{points}."
        )
        yield textwrap.fill(text, width)
    predictions = [each.prediction for each in answers.answers]
    bullets = [f"* Outside the measured range{reason}" for reason in _outside(predictions)]
    bullets += [f"- {text}." for text in _unique(t for p in predictions for t in p.remarks)]
    bullets += [f"- {text}." for text in (*answers.notes, *refused)]
    if bullets:
        yield "\n".join(
            textwrap.fill(printable(text), width, subsequent_indent="  ", break_long_words=False)
            for text in bullets
        )


def _outside(predictions: Sequence[Prediction]) -> Iterator[str]:
    for reason in _unique(text for found in predictions for text in found.outside):
        yield f": {reason}."


def _unique(texts: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _cap(scenario: Scenario) -> str:
    cap = scenario.bucket_cap_bytes
    if math.isnan(cap):
        return "as run"
    return "all" if math.isinf(cap) else f"{cap / (1 << 20):.3g}"


def _hook(scenario: Scenario) -> str:
    return "as run" if scenario.hook is None else printable(scenario.hook) or "none"


def _optional(value: float, factor: float) -> str:
    return "as run" if math.isnan(value) else f"{value * factor:.3g}"


def _ms(value_s: float) -> str:
    value = value_s * 1e3
    return f"{value:.0f}" if value >= 1000 else three_digits(value)
