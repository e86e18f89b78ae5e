"""One rank trains fewer batches than the others."""

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
    # in a long run, ``on_host`` may hold only some of the steps
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
        f"{named_ranks(fewer).capitalize()} {verb} fewer batches than the others: {least} steps "
        f"where the others take {most}. Without DDP's join the others wait for ever, or end with "
        "an error, in the exchange that these ranks do not issue."
    )


def _has_all_steps(trace: Trace) -> bool:
    """True if the rank came to its regular end and its recording is not known to lack steps.

    Another profiler records only the steps of a window. If capture changed its mode, the records
    cover only the steps of some modes. In both cases, the number of recorded steps does not tell
    how many batches the rank had.
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
        "All ranks recorded all of their steps to their regular end, and some of them made fewer "
        "steps than others. The cause is not named in recordings of other profilers, which hold "
        "only a part of each rank's steps. A job that hangs at this point is diagnosed as a hang."
    ),
    why=(
        "Every exchange of gradients needs all ranks. If the data are divided by files, shards or "
        "lengths rather than by a DistributedSampler, the ranks run out of batches at different "
        "times: the rank with most batches waits in an exchange that nobody joins, mostly at the "
        "end of the first epoch, until a time-out. Give all ranks the same number of batches, "
        "or let DDP answer for the ranks that have none left."
    ),
    gain_note=(
        "Not predicted, because the mistake makes no step of this run longer: the other ranks "
        "wait, or the job fails, after the last batch."
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
