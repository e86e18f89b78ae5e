"""Where the figures of a user's script come from, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.align.summaries import SummaryResult
from commprof.analysis.world import WorldResult
from commprof.trace.found_steps import BACKWARD, UPDATE

_STEPS = {
    UPDATE: (
        "Step boundaries were inferred from optimizer.step(). For exact ones call commprof.step() "
        "at the end of the loop's body."
    ),
    BACKWARD: (
        "Step boundaries were inferred from backward passes that communicated, because no "
        "optimizer stepped. For exact ones call commprof.step() at the end of the loop's body."
    ),
}
_SAMPLES = (
    "samples/s counts the batches that DataLoaders returned, by dimension 0 of their tensors; a "
    "batch read by several ranks is counted once per rank."
)


def script_remarks(
    worlds: Sequence[WorldResult], summaries: Sequence[SummaryResult] = ()
) -> list[str]:
    """Remarks on what commprof found out by itself; none where it was told."""
    ends = {world.steps_end for world in worlds} | {found.steps_end for found in summaries}
    found = [text for source, text in _STEPS.items() if source in ends]
    found += [
        f"At world size {world.world_size} {world.merged_steps} of the steps found hold the "
        "backward passes of several, but not their updates: the script left updates out there. "
        "They are in no figure."
        for world in worlds
        if world.merged_steps
    ]
    found += dict.fromkeys(text for world in worlds for text in world.repeats.sentences)
    if any(world.samples_source == "dataloader" for world in worlds):
        found.append(_SAMPLES)
    return found
