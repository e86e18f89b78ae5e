"""Each step starts a new pass over a DataLoader for one batch, as ``next(iter(loader))`` does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.data_passes import DataPasses, data_passes
from commprof.analysis.causes.facts import Facts, RankCalls
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing
from commprof.trace.schema import Phase

#: Least number of steps that start a pass over a DataLoader for a single batch.
_LEAST = 5
#: Least fraction of the steps that start such a pass. Only steps up to the last recorded pass
#: count. The fraction is smaller if a script now and then takes a batch of validation data so.
_MOSTLY = 0.9
_WORKERS = ("loader_worker_starts", "loader_worker_stops")


@dataclass(frozen=True)
class _Begun:
    """Passes of one rank over DataLoaders that ended after the first of several batches."""

    #: Checksum of each batch; 0 if the batch was not compared.
    checksum: Ints
    #: Full number of batches of each pass.
    length: Ints
    #: Fraction of the steps, up to the last recorded pass, that start such a pass.
    fraction: float
    #: Number of steps that start such a pass.
    steps: int
    #: Total time to load the batches, and to start and stop workers.
    taken_ns: float
    #: Total time between the phase before each pass and the phase after it. The script may also do
    #: other work in this time.
    around_ns: float


def _begun(facts: Facts, position: int) -> _Begun:
    calls, passes = facts.ranks[position], data_passes(facts)[position]
    step = row_containing(calls.begin_ns, calls.end_ns, passes.begin_ns)
    rows = np.flatnonzero((passes.batches == 1) & (passes.length >= 2) & (step >= 0))
    noted = step.max(initial=-1) + 1
    begun = passes.chosen(rows)
    taken_ns = float((begun.end_ns - begun.begin_ns).sum())
    for key in _WORKERS:
        begin_ns, end_ns = facts.noted_ns(position, key)
        taken_ns += float((end_ns - begin_ns).sum())
    number = len(np.unique(step[rows]))
    fraction = number / max(1, noted)
    around_ns = _around_ns(calls, begun)
    return _Begun(begun.checksum, begun.length, fraction, number, taken_ns, around_ns)


def _around_ns(calls: RankCalls, begun: DataPasses) -> float:
    phases, steps = columns.phases(calls.trace), columns.steps(calls.trace)
    mine = (phases.thread == steps.thread[0]) & (phases.key != Phase.DATA)
    ended = np.append(0, np.sort(phases.end_ns[mine]))
    low = ended[np.searchsorted(ended, begun.begin_ns, side="right") - 1]
    began = np.append(np.sort(phases.begin_ns[mine]), np.iinfo(np.int64).max)
    high = began[np.searchsorted(began, begun.end_ns)]
    first, last = int(calls.begin_ns[0]), int(calls.end_ns[-1])
    return float((np.minimum(high, last) - np.maximum(low, first)).sum())


def _rule(facts: Facts) -> Sighting | None:
    if not data_passes(facts):
        return None
    of_ranks = [_begun(facts, position) for position in range(len(facts.ranks))]
    if any(begun.steps < _LEAST or begun.fraction < _MOSTLY for begun in of_ranks):
        return None
    taken = [begun.taken_ns for begun in of_ranks]
    share = facts.share(taken)
    if not share >= WORTH_NAMING:
        return None
    first = of_ranks[0]
    is_same = all(begun.checksum.all() and len(set(begun.checksum)) == 1 for begun in of_ranks)
    again = " Every pass of a rank gives the same batch, so the rank trains on it only." * is_same
    return Sighting(
        f"Each step starts a new pass over a DataLoader of {int(np.median(first.length))} batches "
        "and takes only the first batch, as next(iter(loader)) does. This takes "
        f"{in_ms(facts.per_step_ms(taken))} per step, for drawing the order of all samples, "
        f"starting and stopping workers, and loading.{again}",
        max(share, facts.share([begun.around_ns for begun in of_ranks])),
    )


CAUSE = CatalogueCause(
    id="pass-each-step",
    title="Each step begins a new pass over the data, for a single batch",
    needs=(Figure.PARTS,),
    rule=_rule,
    looks_like=(
        f"In at least {_MOSTLY:.0%} of the steps, and in at least {_LEAST} steps, each rank starts "
        "a pass over a DataLoader of at least two batches and takes only one batch. Loading these "
        f"batches, and starting and stopping workers, takes at least {WORTH_NAMING:.0%} of the "
        "step. The cause is not named for recordings of other tools, which do not show these "
        "passes."
    ),
    why=(
        "`next(iter(loader))` in the loop makes a new iterator for each batch. Each iterator draws "
        "the order of all samples, starts the workers, waits for the first batch, and throws away "
        "the batches that the workers have loaded in advance. Without shuffling, the job trains on "
        "the first batch only. With shuffling, it uses some samples often and others never. Make "
        "one iterator before the loop instead: its workers load the next batches during the steps."
    ),
    gain_note=(
        "Not predicted, because the records do not show how long a batch takes within a pass. The "
        "fix saves at most the given share, which is the time between the phase before each of "
        "these passes and the phase after it."
    ),
    fix=(
        "batches = iter(YOUR_LOADER)  # once, before the loop\n"
        "for step in range(YOUR_STEPS):\n"
        "    batch = next(batches, None)\n"
        "    if batch is None:  # the pass is over: sampler.set_epoch, then a new pass\n"
        "        batches = iter(YOUR_LOADER)\n"
        "        batch = next(batches)\n"
        "    YOUR_STEP(YOUR_MODEL, batch)"
    ),
    source="https://github.com/SakanaAI/continuous-thought-machines/pull/19",
)
