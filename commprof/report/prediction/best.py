"""The setting with the shortest predicted step, as text: what it saves, and what to type to see."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from commprof.predict.fit.held_out import ModelError
from commprof.predict.replay.scenario import Scenario
from commprof.predict.what_if.answers import Best
from commprof.report.prediction.cells import bracketed, cap_mib, hook_words, ms
from commprof.text import printable

_WIDTH = 100


def render(best: Best, error: ModelError | None, in_script: Sequence[str], command: str) -> str:
    """Renders the best setting, and the command that compares it with a run.

    Args:
        best: of all that was predicted.
        error: the model's own; None where it is not known.
        in_script: what no option of the command sets.
        command: to type.
    """
    found = best.candidate
    step = best.interval_s
    bounds = bracketed(ms(step.low), ms(step.high), error is not None)
    text = (
        f"Shortest step: {ms(step.value)} {bounds} ms with "
        f"{setting_words(found.prediction.scenario)}; "
    )
    share = f"{abs(found.gain):.1%}"
    if found.gain_low > 0 and found.is_gain is not False:
        text += f"that is {share} less than as it was recorded"
        text += "." if found.is_gain else ", as far as the model is right: its error is not known."
    elif found.gain_high < 0:
        text += f"that is {share} more than as it was recorded: leave it as it is."
        return textwrap.fill(text, _WIDTH) + "\n"
    else:
        text += "whether that is less than as it was recorded is not certain."
    lines = textwrap.wrap(text, _WIDTH)
    if in_script:
        lines += textwrap.wrap(f"In the script: {'; '.join(in_script)}.", _WIDTH)
    lines.append("To try it, and to see what became of the prediction:")
    return "\n".join([*lines, f"  {printable(command)}"]) + "\n"


def setting_words(scenario: Scenario) -> str:
    """Says what differs from the recorded setting."""
    words = []
    if not math.isnan(scenario.bucket_cap_bytes):
        words.append(f"bucket cap {cap_mib(scenario.bucket_cap_bytes)} MiB")
    if scenario.hook is not None:
        words.append(f"hook {hook_words(scenario.hook)}")
    if scenario.shard_ranks is not None:
        words.append(f"{scenario.shard_ranks} ranks that share a copy")
    if scenario.wrap_blocks is not None:
        words.append(f"{scenario.wrap_blocks} blocks wrapped together")
    if scenario.reshard_after_forward is not None:
        words.append(f"resharding {'on' if scenario.reshard_after_forward else 'off'}")
    if scenario.gather_dtype:
        words.append(f"parameters gathered in {scenario.gather_dtype}")
    if scenario.reduce_dtype:
        words.append(f"gradients reduced in {scenario.reduce_dtype}")
    return ", ".join(words)
