"""Scalars, such as a logged loss, are reduced in every micro batch instead of once per step."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.scalars_one_by_one import small
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms
from commprof.trace import columns
from commprof.trace.lookup import among
from commprof.trace.schema import OPS, Phase

#: Fewest micro batches of a step.
_LEAST = 2
#: In at least this fraction of the steps, every micro batch makes the calls.
_USUAL = 0.9


def _passes(calls: RankCalls) -> int:
    """Returns the median number of backward passes per step; 0 if steps have several updates.

    If each pass has its own update, as in a GAN, the passes are not micro batches.
    """
    phases = columns.phases(calls.trace)
    chosen = among(phases.key, Phase.BACKWARD, Phase.OPTIMIZER)
    order = np.argsort(phases.begin_ns[chosen], kind="stable")
    begun, key = phases.begin_ns[chosen][order], phases.key[chosen][order]
    # Several optimizers may follow one pass. Only the first update after a pass counts.
    updates = begun[1:][(key[1:] == Phase.OPTIMIZER) & (key[:-1] == Phase.BACKWARD)]
    number = np.searchsorted(updates, calls.end_ns) - np.searchsorted(updates, calls.begin_ns)
    if len(number) and np.median(number) > 1:
        return 0
    begun = begun[key == Phase.BACKWARD]
    counts = np.searchsorted(begun, calls.end_ns) - np.searchsorted(begun, calls.begin_ns)
    return int(np.median(counts)) if len(counts) else 0


def _repeated(calls: RankCalls) -> tuple[Mask, int]:
    """Returns a mask of small calls that every micro batch makes, and the micro batches per step.

    The training thread waits for most of these calls.
    """
    mask, passes = small(calls), _passes(calls)
    rows = np.flatnonzero(mask)
    if passes < _LEAST or not len(rows):
        return np.zeros(len(mask), dtype=bool), passes
    table = calls.table
    kinds = np.stack([table.op[rows], table.group[rows], calls.size_bytes[rows]], axis=1)
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    chosen = np.zeros(len(mask), dtype=bool)
    for number in range(int(kind.max()) + 1):
        of_kind = rows[kind == number]
        # Calls with a phase between them belong to different micro batches.
        places = np.unique(np.stack([calls.step[of_kind], calls.segment[of_kind]], axis=1), axis=0)
        per_step = np.bincount(places[:, 0], minlength=len(calls.begin_ns))
        waited_for = calls.is_blocking[of_kind].mean()
        if float((per_step >= passes).mean()) >= _USUAL and waited_for >= 0.5:
            chosen[of_kind] = True
    return chosen, passes


def _needless(calls: RankCalls, mask: Mask) -> Mask:
    rows = np.flatnonzero(mask)
    latest = np.zeros(len(calls.begin_ns), dtype=np.int64)
    np.maximum.at(latest, calls.step[rows], calls.segment[rows])
    needless = mask.copy()
    needless[rows[calls.segment[rows] == latest[calls.step[rows]]]] = False
    return needless


def _rule(facts: Facts) -> Sighting | None:
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, *_repeated(calls)), lambda of_rank: bool(of_rank[1].any())
    )
    if not of_ranks:
        return None
    removed = [Removed.whole(calls, _needless(calls, mask)) for calls, mask, _ in of_ranks]
    blocked = [float((spans.end_ns - spans.begin_ns).sum()) for spans in removed]
    share = facts.share(blocked)
    if not share >= WORTH_NAMING:
        return None
    first, mask, passes = of_ranks[0]
    op = OPS[int(np.bincount(first.table.op[mask]).argmax())]
    line, ms = first.line(mask), facts.per_step_ms(blocked)
    calls = counted(round(first.per_step(mask)), f"{op} call")
    return Sighting(
        f"Each of the {passes} micro batches of a step waits for small calls{at_line(line)}: "
        f"{calls} per step ({in_bytes(float(first.size_bytes[mask].mean()))} on average). If each "
        "rank added the values up and reduced the sums after the last micro batch, the step would "
        f"take {in_ms(ms)} less.",
        share,
        saving_without(facts, removed),
        line,
        op=op,
    )


CAUSE = CatalogueCause(
    id="scalars-every-pass",
    title="Scalars are reduced in every micro batch",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"Steps have at least {_LEAST} backward passes before one update. In nine of ten steps, "
        "the number of calls of one operation, group and size is at least the number of these "
        "passes. The calls have at most 256 bytes and are made outside of forward and backward, "
        "and the training thread waits for at least half of them. Calls count as one if no pass, "
        "update or loading lies between them. Without the last such call of each step, they take "
        f"at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Every exchange makes all ranks wait for the slowest rank. A logged loss, a number of "
        "tokens or a flag does not need an exchange in every micro batch. Add up the numbers on "
        "each rank, and reduce the sum after the last micro batch, or when it is logged."
    ),
    fix=(
        "total = torch.zeros(1)  # before the micro batches; on the GPU if NCCL is used\n"
        "loss = YOUR_LOSS(YOUR_MODEL(YOUR_BATCH))\n"
        "total += loss.detach()  # in each micro batch, in place of the reduction\n"
        "torch.distributed.all_reduce(total)  # after the last one, or for a log\n"
        "# keep reductions that the loss or a decision in the micro batch needs"
    ),
    source="https://github.com/modelscope/ms-swift/pull/9966",
)
