"""A DataLoader starts new worker processes in every epoch, and the ranks wait for them."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import (
    FEW_STEPS,
    WORTH_NAMING,
    CatalogueCause,
    Sighting,
)
from commprof.analysis.causes.edits.script import Script
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing
from commprof.trace.schema import Phase
from commprof.trace.stretches import Stretches, stretches
from commprof.units import ns_to_ms

#: The cause is named only if each rank started workers at least this many times.
_LEAST = 2
#: Metadata keys of the times at which workers started and ended.
_STARTS, _STOPS = "loader_worker_starts", "loader_worker_stops"


def _spans(facts: Facts, position: int) -> tuple[Stretches, int]:
    """Returns when workers delayed a rank, and how often the rank started workers.

    Workers delay a rank while they start, while they stop, and while their first batch takes longer
    than the median batch.
    """
    trace = facts.ranks[position].trace
    phases, steps = columns.phases(trace), columns.steps(trace)
    order = np.argsort(phases.begin_ns, kind="stable")
    order = order[phases.thread[order] == steps.thread[0]]
    work = order[phases.key[order] != Phase.DATA]
    starts, stops = (
        _between(facts.noted_ns(position, key), phases.begin_ns[work], phases.end_ns[work])
        for key in (_STARTS, _STOPS)
    )
    order = order[phases.key[order] == Phase.DATA]
    loads = phases.begin_ns[order], phases.end_ns[order]
    row = np.searchsorted(loads[0], starts[1])
    row = np.unique(row[row < len(order)])
    usual_ns = int(np.median(loads[1] - loads[0])) if len(order) else 0
    first = loads[0][row], np.maximum(loads[1][row] - usual_ns, loads[0][row])
    begin, end = (np.concatenate(parts) for parts in zip(starts, stops, first, strict=True))
    return stretches(begin, end), len(starts[0])


def _between(noted: tuple[Ints, Ints], begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Leaves out spans of another thread, during which the training thread worked."""
    inside = row_containing(begin_ns, end_ns, noted[0]) >= 0
    first, last = (np.searchsorted(begin_ns, times) for times in noted)
    is_between = ~inside & (first == last)
    return noted[0][is_between], noted[1][is_between]


def _rule(facts: Facts) -> Sighting | None:
    positions = range(len(facts.ranks))
    if any(len(facts.noted_ns(position, _STARTS)[0]) < _LEAST for position in positions):
        return None
    of_ranks = [_spans(facts, position) for position in positions]
    number = min(starts for _, starts in of_ranks)
    share = facts.share([float(idle.length_ns.sum()) for idle, _ in of_ranks])
    if number < _LEAST or not share >= WORTH_NAMING:
        return None
    removed = [
        Removed(np.zeros(len(calls.table), dtype=bool), idle.begin_ns, idle.end_ns)
        for calls, (idle, _) in zip(facts.ranks, of_ranks, strict=True)
    ]
    ms = ns_to_ms(share * facts.steps * facts.step_ns / number)
    return Sighting(
        f"A DataLoader starts new worker processes {number} times in {facts.steps} steps. Each "
        f"time, the ranks wait {in_ms(ms)} for the start, the first batch and the end of these "
        "processes.",
        share,
        saving_without(facts, removed),
    )


def _edit(script: Script) -> str:
    site = script.only("DataLoader")
    if site is None or site.loop is not None or not site.target:
        return ""
    if site.values("num_workers") in ([], ["0"]):
        return ""
    return site.source.with_settings(site.call, {"persistent_workers": True})


CAUSE = CatalogueCause(
    id="workers-restarted",
    title="DataLoader workers are started anew in every epoch",
    needs=(Figure.PARTS,),
    rule=_rule,
    looks_like=(
        f"Each rank starts workers of a DataLoader at least {_LEAST} times in its measured steps. "
        "The ranks wait for the start and the end of these workers, and longer for the first batch "
        f"than for a usual batch. These waits take at least {WORTH_NAMING:.0%} of all time. "
        "Recordings of other tools do not show when workers start, so this cause is not named for "
        "them."
    ),
    why=(
        "With `num_workers`, a DataLoader starts that many processes for each pass over the data, "
        "and ends the processes after the pass. All ranks wait until the processes have started "
        "and have loaded the first batch. If epochs are short, this happens often. Persistent "
        "workers keep their copy of the data set. So changes that the script makes to the data set "
        "between epochs have no effect on persistent workers. A sampler's `set_epoch` works with "
        "persistent workers too."
    ),
    gain_note=(
        "The steps are replayed without these times. The fix may save less time, because the ranks "
        "also wait until persistent workers have loaded the first batch of an epoch."
    ),
    fix=(
        'options = {"num_workers": 4, "persistent_workers": True}\n'
        "loader = torch.utils.data.DataLoader(YOUR_DATA, YOUR_BATCH_SIZE, **options)\n"
        "# make the loader once, before the loop over epochs"
    ),
    edit=lambda facts, _: _edit(facts.script),
    source="https://github.com/open-mmlab/mmpretrain/issues/196",
    worth=FEW_STEPS,
)
