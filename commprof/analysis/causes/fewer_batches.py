"""Some ranks train fewer batches than the others."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import DDP
from commprof.analysis.causes.edits.training_loop import around_training
from commprof.analysis.causes.facts import Facts
from commprof.text import named_ranks
from commprof.trace import columns
from commprof.trace.reader import Trace


def _rule(facts: Facts) -> Sighting | None:
    seen = facts.seen.all_steps
    # ``on_host`` may lack some of the steps of a long run
    traces = seen.on_host if seen.left_out is None else seen.recorded
    if len(traces) < facts.world.world_size or not all(map(_has_all_steps, traces)):
        return None
    steps = [len(columns.steps(trace)) for trace in traces]
    most, least = max(steps), min(steps)
    if most == least:
        return None
    fewer = [trace.rank for trace, number in zip(traces, steps, strict=True) if number < most]
    verb = "trains" if len(fewer) == 1 else "train"
    return Sighting(
        f"{named_ranks(fewer).capitalize()} {verb} fewer batches than the other ranks: as few as "
        f"{least} steps instead of {most}. Without DDP's join, the other ranks then hang or fail "
        "in the next exchange."
    )


def _has_all_steps(trace: Trace) -> bool:
    """True if the rank ended regularly and all of its steps were recorded.

    Other profilers record only some of the steps, and so does capture if it changes its mode.
    """
    is_whole = trace.complete and not trace.dropped and not trace.is_foreign
    is_one_mode = trace.summary is None and "capture_state" not in trace.metadata
    return is_whole and is_one_mode and not (trace.metadata.get("ending") or {}).get("error")


def _edit(facts: Facts) -> str:
    model = facts.script.model(*DDP)
    if not model or any(facts.script.places("join", "Join")):
        return ""
    head = f"from torch.distributed.algorithms.join import Join\n\nwith Join([{model}]):"
    return around_training(facts.script, head, model)


CAUSE = CatalogueCause(
    id="fewer-batches",
    title="Some ranks have fewer batches than others",
    needs=(),
    rule=_rule,
    looks_like=(
        "All ranks ended regularly and recorded all of their steps, and some ranks made fewer "
        "steps than others. The cause is not named for recordings of other profilers, which "
        "contain only some steps of each rank. If the job hangs at this point, it is diagnosed as "
        "a hang."
    ),
    why=(
        "Every exchange of gradients needs all ranks. If files or shards are assigned to the ranks "
        "without a DistributedSampler, some ranks run out of batches earlier than others. The "
        "remaining ranks then wait in an exchange until a time-out, mostly at the end of the first "
        "epoch. Give all ranks the same number of batches, or use DDP's join: it takes part in the "
        "exchanges for ranks that have no batches left."
    ),
    gain_note=(
        "Not predicted, because the mistake does not make the steps longer: the other ranks wait, "
        "or the job fails, after the last batch of a rank."
    ),
    fix=(
        "from torch.distributed.algorithms.join import Join\n\n"
        "with Join([YOUR_MODEL]):  # a DistributedDataParallel model\n"
        "    for batch in YOUR_LOADER:\n"
        "        YOUR_STEP(YOUR_MODEL, batch)"
    ),
    edit=lambda facts, _: _edit(facts),
    source="https://github.com/Lightning-AI/litData/issues/233",
)
