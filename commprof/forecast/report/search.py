"""Text on the result of ``--optimize``: the best settings and their gains."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from commprof import invocation
from commprof.forecast.costs.hook_costs import recording
from commprof.forecast.fit.held_out import ModelError
from commprof.forecast.report.cells import ms
from commprof.forecast.scenario.scenario import Prediction
from commprof.forecast.what_if.optimize import PredictedCandidate, Search
from commprof.report.predicted_words import bracketed, cap_mib, hook_words
from commprof.report.tabulated import tabulated
from commprof.text import printable

_MOST_CANDIDATES = 5
_HEADERS = (
    "cap MiB",
    "hook",
    "step ms",
    "gain (range due to\nsampling and fit)",
    "certainty:\nfaster",
    "\nbeyond error",
)


def render(
    search: Search, ranks: int, error: ModelError | None, width: int, tables: int | None = None
) -> str:
    """Renders a table of the best settings, a verdict, and the compared settings.

    Args:
        search: search of one scenario.
        ranks: world size of the scenario.
        error: the model's own error; None if unknown.
        width: largest number of characters in a line of text.
        tables: largest number of characters in a line of a table; None for no limit.
    """
    count = len(search.candidates)
    which = (
        "Settings" if count <= _MOST_CANDIDATES else f"Best {_MOST_CANDIDATES} of {count} settings"
    )
    rows = [_row(candidate) for candidate in search.candidates[:_MOST_CANDIDATES]]
    table = tabulated(rows, _HEADERS, [1], tables)
    shown = f"{which} at {ranks} ranks, the best first:\n{table}"
    texts = [_verdict(search.candidates, error), _compared(search), *_missing(search)]
    return "\n".join([shown, *(_filled(printable(text), width) for text in texts)])


def _filled(text: str, width: int) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _row(candidate: PredictedCandidate) -> tuple[str, ...]:
    scenario, beyond = candidate.prediction.scenario, candidate.certainty_beyond_error
    return (
        cap_mib(scenario.bucket_cap_bytes),
        hook_words(scenario.hook),
        f"{ms(candidate.prediction.step_s.value)}{'*' if candidate.prediction.outside else ''}",
        f"{candidate.gain:+.1%} {_range(candidate, '{:+.1%}')}",
        f"{candidate.certainty:.0%}",
        "-" if math.isnan(beyond) else f"{beyond:.0%}",
    )


def _verdict(candidates: Sequence[PredictedCandidate], error: ModelError | None) -> str:
    if len(candidates) == 1:
        return "No other setting was compared with the given one."
    faster = [candidate for candidate in candidates if candidate.gain_low > 0]
    gains = [candidate for candidate in faster if candidate.is_gain]
    if not faster:
        return "No setting is certain to gain anything: every interval extends to zero or below."
    fastest = (
        "the fastest setting whose whole interval is above zero "
        f"({_setting(faster[0].prediction)}) would save {_gain(faster[0])}"
    )
    if error is None:
        return (
            f"According to the model, {fastest}. This saving may be an error of the model: the "
            "model's error is not known, because no recorded steps were held out to check the "
            "model. Record another world size, or give further runs with --check."
        )
    beyond = f"the model's largest error on held-out steps ({error.worst:.1%})."
    if not gains:
        return (
            f"No setting is certain to gain anything: {fastest}, but the low end of this range is "
            f"not above {beyond}"
        )
    best = gains[0]
    return (
        f"Best: {_setting(best.prediction)}. It saves {_gain(best)}; the low end of this range is "
        f"above {beyond}"
    )


def _setting(prediction: Prediction) -> str:
    scenario = prediction.scenario
    return f"bucket cap {_caps([scenario.bucket_cap_bytes])}, hook {hook_words(scenario.hook)}"


def _gain(candidate: PredictedCandidate) -> str:
    return f"{candidate.gain:.1%} of the step {_range(candidate, '{:.1%}')}"


def _range(candidate: PredictedCandidate, text: str) -> str:
    return bracketed(text.format(candidate.gain_low), text.format(candidate.gain_high), False)


def _compared(search: Search) -> str:
    text = (
        f"Compared: bucket cap {_caps(search.bucket_caps_bytes)}; hook "
        f"{', '.join(map(hook_words, search.hooks))}."
    )
    if search.same_count:
        text += f" Settings left out, as another cap makes the same buckets: {search.same_count}."
    return text


def _missing(search: Search) -> Iterator[str]:
    if search.has_no_hook:
        other = "other " if len(search.hooks) > 1 else ""
        yield (
            f"- No {other}hook's cost was measured, so no such hook was compared. Record the run "
            f"with a hook, and fit both runs: {recording('fp16')} --output RUN_WITH_HOOK, then "
            f"{invocation.command('fit', 'RUN', 'RUN_WITH_HOOK')}."
        )
    reasons: dict[tuple[str | None, str], list[float]] = {}
    for refusal in search.refused:
        reasons.setdefault((refusal.hook, refusal.reason), []).append(refusal.bucket_cap_bytes)
    for (hook, reason), caps in reasons.items():
        yield f"- Not compared: bucket cap {_caps(caps)} with hook {hook_words(hook)}: {reason}."


def _caps(caps_bytes: Sequence[float]) -> str:
    unit = " MiB" if any(map(math.isfinite, caps_bytes)) else ""
    return ", ".join(map(cap_mib, caps_bytes)) + unit
