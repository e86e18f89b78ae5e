"""Each step begins a new pass over a DataLoader for a single batch, as ``next(iter(loader))``."""

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

#: Least number of steps that begin a pass over a DataLoader for a single batch.
_LEAST = 5
#: Steps that begin such a pass are at least this fraction of the steps up to the last noted pass.
#: The fraction is smaller if a script takes a batch of validation data in this way now and then.
_MOSTLY = 0.9
#: Metadata keys of the times at which a DataLoader starts and stops its workers, which it does for
#: each pass.
_WORKERS = ("loader_worker_starts", "loader_worker_stops")


@dataclass(frozen=True)
class _Begun:
    """Passes over DataLoaders that one rank ended after the first batch, though they have more."""

    #: Checksums of the batches; 0 if a batch was not compared.
    checksum: Ints
    #: Numbers of batches that the passes have.
    length: Ints
    #: Fraction of the steps, up to the last noted pass, in which such a pass begins.
    fraction: float
    #: Number of steps in which such a pass begins.
    steps: int
    #: Time until the first batches came, plus the time for starting and ending workers.
    taken_ns: float
    #: Time from the end of the phase before each pass to the begin of the phase after it. In this
    #: time the iterator of the pass is made and deleted; the script may do other work in it.
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
    """Total time from the end of the phase before each pass to the begin of the phase after it."""
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
    again = " Each of them gives the same batch: the job trains on nothing else." * is_same
    return Sighting(
        f"Each step begins a new pass over a DataLoader, of {int(np.median(first.length))} "
        "batches, and takes only its first batch, as next(iter(loader)) does: "
        f"{in_ms(facts.per_step_ms(taken))} per step to draw the order of all samples, to start "
        f"and end workers, and to load.{again}",
        max(share, facts.share([begun.around_ns for begun in of_ranks])),
    )


CAUSE = CatalogueCause(
    id="pass-each-step",
    title="Each step begins a new pass over the data, for a single batch",
    needs=(Figure.PARTS,),
    rule=_rule,
    looks_like=(
        f"In at least {_MOSTLY:.0%} of the steps, and in at least {_LEAST} steps, each rank begins "
        "a pass over a DataLoader of at least two batches and takes a single batch of it. Loading "
        f"these batches, with starting and ending workers, takes at least {WORTH_NAMING:.0%} of "
        "the step. This cause is not named in recordings of other tools, which do not show these "
        "passes."
    ),
    why=(
        "`next(iter(loader))` in the loop makes a new iterator for each batch: it draws the order "
        "of all samples, starts the workers, waits while they load, and drops the batches that "
        "they have loaded ahead. Without shuffling, the job sees nothing but the first batch; with "
        "it, some samples are drawn often and others never. An iterator that is made once gives "
        "one batch after the other, which workers have loaded during the steps before."
    ),
    gain_note=(
        "Not predicted, because the records do not tell how long a batch takes within a pass. The "
        "fix wins at most the given share, the time from the phase before each of these passes to "
        "the phase after it; without workers, a batch still has to be loaded."
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
