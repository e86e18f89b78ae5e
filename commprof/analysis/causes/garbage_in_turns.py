"""Python collects garbage in a different step on each rank, and the other ranks wait."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import (
    FEW_STEPS,
    WORTH_NAMING,
    CatalogueCause,
    Sighting,
)
from commprof.analysis.causes.edits.training_loop import in_training
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing
from commprof.units import ns_to_ms

#: If at least this fraction of the ranks collects in a step with collections, on average, then the
#: ranks collect at the same times.
_TOGETHER = 0.75


def _ranks_that_collect(facts: Facts, begins_ns: list[Ints]) -> float:
    """Returns the fraction of ranks that collect in a step with collections, on average."""
    ranks = np.zeros(facts.steps, dtype=np.int64)
    for calls, begin_ns in zip(facts.ranks, begins_ns, strict=True):
        ranks[np.unique(row_containing(calls.begin_ns, calls.end_ns, begin_ns))] += 1
    return float(ranks[ranks > 0].mean()) / len(facts.ranks)


def _rule(facts: Facts) -> Sighting | None:
    spans = [facts.noted_ns(position, "garbage") for position in range(len(facts.ranks))]
    collected_ns = [float((end - begin).sum()) for begin, end in spans]
    number = sum(len(begin) for begin, _ in spans)
    if facts.share(collected_ns) < WORTH_NAMING / 2 or number < 2:
        return None
    if max(len(begin) for begin, _ in spans) < 2:
        return None  # a single collection may only clean up after the start of the job
    if _ranks_that_collect(facts, [begin for begin, _ in spans]) >= _TOGETHER:
        return None
    removed = [
        Removed(np.zeros(len(calls.table), dtype=bool), *times)
        for calls, times in zip(facts.ranks, spans, strict=True)
    ]
    saving = saving_without(facts, removed)
    if saving is not None and saving.saved.value < WORTH_NAMING:
        return None
    # All ranks wait for each collection, so at most the sum over the ranks is lost.
    lost = sum(collected_ns) / facts.steps / facts.step_ns
    mean_ms = ns_to_ms(sum(collected_ns) / number)
    return Sighting(
        f"Python's garbage collector stops the ranks {number} times in {facts.steps} steps, for "
        f"{in_ms(mean_ms)} on average. Each rank collects at times of its own, and the other "
        f"ranks wait.",
        lost,
        saving,
    )


CAUSE = CatalogueCause(
    id="garbage-in-turns",
    title="Python collects garbage at a different time on each rank",
    needs=(Figure.EXPOSED,),
    rule=_rule,
    looks_like=(
        "At least one rank collects garbage at least twice in the measured steps, for at least 1 "
        "ms each time. In a step with collections, on average fewer than "
        f"{_TOGETHER:.0%} of the ranks collect. A replay of the steps without the collections of "
        f"all ranks, if one is possible, is at least {WORTH_NAMING:.0%} shorter."
    ),
    why=(
        "CPython collects garbage when enough new objects exist. This happens in a different step "
        "on each rank. If a script holds millions of objects, a collection can stop a rank for "
        "seconds. All other ranks wait for this rank in the next exchange, so the pauses of all "
        "ranks add up. If all ranks collect in the same steps, they pause at the same time. "
        "`gc.freeze()` excludes all existing objects from later collections."
    ),
    fix=(
        "import gc\n\n"
        "gc.disable(), gc.collect(), gc.freeze()  # before training\n"
        "if YOUR_STEP % 1000 == 0:  # in the loop, on every rank\n"
        "    gc.collect(1)"
    ),
    edit=lambda facts, _: in_training(
        facts.script,
        "import gc\n\ngc.disable(), gc.collect(), gc.freeze()",
        "if STEP % 1000 == 0:\n    gc.collect(1)",
    ),
    source="https://github.com/pytorch/torchtitan/pull/148",
    worth=FEW_STEPS,
)
