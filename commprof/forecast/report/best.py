"""Text on the changed setting with the shortest predicted step, and the command to try it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from commprof.forecast.fit.held_out import ModelError
from commprof.forecast.report.cells import ms
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.what_if.answers import Best
from commprof.report.predicted_words import bracketed, change_words
from commprof.text import printable

_WIDTH = 100
#: Fields of a scenario that a run can set, in the order of the text.
_SETTINGS = (
    *("bucket_cap_bytes", "hook", "shard_ranks", "wrap_blocks", "accumulate"),
    *("reshard_after_forward", "gather_dtype", "reduce_dtype"),
)


def render(best: Best, error: ModelError | None, in_script: Sequence[str], command: str) -> str:
    """Renders the best setting, and the command that tries this setting.

    There is no command if the setting is certainly slower than the recorded one.

    Args:
        best: the best of all predictions.
        error: the model's own error; None if unknown.
        in_script: changes to make in the script, because no option of the command makes them.
        command: command to type.
    """
    candidate = best.candidate
    step = best.interval_s
    bounds = bracketed(ms(step.low), ms(step.high), error is not None)
    scenario = candidate.prediction.scenario
    what, per = "Shortest step of the changed settings:", ""
    if scenario.accumulate is not None:
        what, per = "Least time per sample of the changed settings: a step of", " per sample"
    text = f"{what} {ms(step.value)} {bounds} ms with {setting_words(scenario)}; "
    share = f"{abs(candidate.gain):.1%}"
    if candidate.gain_low > 0 and candidate.is_gain is not False:
        text += f"that is {share} less{per} than in the recorded setting"
        text += "." if candidate.is_gain else ", if the model is right: its error is not known."
    elif candidate.gain_high < 0:
        text += (
            f"that is {share} more{per} than in the recorded setting: keep the recorded setting."
        )
        return textwrap.fill(text, _WIDTH) + "\n"
    else:
        text += (
            f"it is not certain that this setting takes less time{per} than the recorded setting."
        )
    lines = textwrap.wrap(text, _WIDTH)
    if in_script:
        lines += textwrap.wrap(f"In the script: {'; '.join(in_script)}.", _WIDTH)
    compared = ", and to compare the step with the prediction"
    lines.append(f"To try this setting{compared * ('--check-prediction' in command)}:")
    return "\n".join([*lines, f"  {printable(command)}"]) + "\n"


def setting_words(scenario: Scenario) -> str:
    """Names the differences from the recorded setting."""
    values = {name: getattr(scenario, name) for name in _SETTINGS}
    return ", ".join(
        change_words(name, value)
        for name, value in values.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    )
