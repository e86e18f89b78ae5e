"""Python collects garbage on each rank in another step, and the others wait for it."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing
from commprof.units import ns_to_ms


def _collections(facts: Facts, calls: RankCalls, place: int) -> tuple[Ints, Ints]:
    """Begins and ends, in ns, of the collections in measured steps, on the common clock.

    Empty where they were not recorded.
    """
    noted = calls.trace.metadata.get("garbage") or {}
    pairs = zip(noted.get("begin_ns", ()), noted.get("end_ns", ()), strict=False)
    spans = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    # The metadata has the rank's own clock; its steps tell the difference.
    recorded, aligned = facts.seen.recorded[place], facts.seen.traces[place]
    if len(recorded.records) and len(recorded.records) == len(aligned.records):
        first = int(aligned.records["timestamp_ns"][0]) - int(recorded.records["timestamp_ns"][0])
        spans = spans + first
    inside = row_containing(calls.begin_ns, calls.end_ns, spans[:, 0]) >= 0
    return spans[inside, 0], spans[inside, 1]


def _rule(facts: Facts) -> Sighting | None:
    spans = [_collections(facts, calls, place) for place, calls in enumerate(facts.ranks)]
    own = [float((end - begin).sum()) for begin, end in spans]
    number = sum(len(begin) for begin, _ in spans)
    if facts.share(own) < WORTH_NAMING / 2 or number < 2:
        return None
    removed = [
        Removed(np.zeros(len(calls.table), dtype=bool), *times)
        for calls, times in zip(facts.ranks, spans, strict=True)
    ]
    saving = saving_without(facts, removed)
    if saving is not None and saving.saved.value < WORTH_NAMING:
        return None
    # All ranks wait for each: at most the sum over the ranks is lost.
    lost = sum(own) / facts.steps / facts.step_ns
    each = ns_to_ms(sum(own) / number)
    return Sighting(
        f"Python's garbage collector stops the ranks {number} times in {facts.steps} steps, for "
        f"{in_ms(each)} on average and on each rank at times of its own; the other ranks wait.",
        lost,
        saving,
    )


CAUSE = CatalogueCause(
    id="garbage-in-turns",
    title="Python collects garbage on each rank at another time",
    needs=(Figure.EXPOSED,),
    rule=_rule,
    looks_like=(
        "Garbage collections of at least 1 ms lie in measured steps, and the replay of the steps "
        f"without them is at least {WORTH_NAMING:.0%} shorter."
    ),
    why=(
        "CPython collects old objects when enough have been made, which every rank reaches in "
        "another step. A collection stops the rank for up to seconds if a script holds millions of "
        "objects, and all other ranks wait for it in the next exchange, so that the pauses of all "
        "ranks add up. If all ranks collect in the same steps, they pause at the same time, and "
        "`gc.freeze()` leaves out the objects that live as long as the job."
    ),
    fix=(
        "import gc\n\n"
        "gc.disable(), gc.collect(), gc.freeze()  # before training\n"
        "if step % 1000 == 0:  # in the loop, on every rank\n"
        "    gc.collect(1)"
    ),
    source="https://github.com/pytorch/torchtitan/pull/148",
)
