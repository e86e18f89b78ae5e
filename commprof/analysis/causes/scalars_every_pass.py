"""Scalars such as a loss that is shown are reduced in every micro batch, not once per step."""

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
    """Median number of backward passes of a measured step; 0 if a step has more than one update.

    Passes with updates of their own, as in a GAN or PPO's minibatches, are no micro batches.
    """
    phases = columns.phases(calls.trace)
    chosen = among(phases.key, Phase.BACKWARD, Phase.OPTIMIZER)
    order = np.argsort(phases.begin_ns[chosen], kind="stable")
    begun, key = phases.begin_ns[chosen][order], phases.key[chosen][order]
    # Several optimizers may update the weights after one pass.
    updates = begun[1:][(key[1:] == Phase.OPTIMIZER) & (key[:-1] == Phase.BACKWARD)]
    number = np.searchsorted(updates, calls.end_ns) - np.searchsorted(updates, calls.begin_ns)
    if len(number) and np.median(number) > 1:
        return 0
    begun = begun[key == Phase.BACKWARD]
    counts = np.searchsorted(begun, calls.end_ns) - np.searchsorted(begun, calls.begin_ns)
    return int(np.median(counts)) if len(counts) else 0


def _repeated(calls: RankCalls) -> tuple[Mask, int]:
    """Small calls that every micro batch makes, and the number of micro batches in a step.

    The calls have one operation, group and size, and the training thread waits for most of them.
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
        waited_for = calls.is_blocking[of_kind].mean()  # some calls end before a wait
        if float((per_step >= passes).mean()) >= _USUAL and waited_for >= 0.5:
            chosen[of_kind] = True
    return chosen, passes


def _needless(calls: RankCalls, mask: Mask) -> Mask:
    """The masked calls except those of the last micro batch of each step."""
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
        "the calls of one operation, group and size are at least as many as these passes. The "
        "calls have at most 256 bytes and are made outside of forward and backward, and the "
        "training thread waits for them. Between any two of them lies a pass, an update or "
        f"loading. All but the last of these calls take at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "A loss that is only shown, a number of tokens or a flag needs no exchange in each micro "
        "batch of a step: every exchange makes all ranks wait for the slowest of them, though "
        "gradients are exchanged only once per step. Add the numbers up on each rank, and reduce "
        "the sum after the last micro batch, or where it is logged."
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
