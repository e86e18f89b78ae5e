"""A pass exchanges the gradients of a model that is not updated after this pass, as in GANs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.ddp_small_buckets import buckets_of_ddp
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.exchanged import MOST_MODELS, trained_by
from commprof.trace.schema import Phase

#: The needless exchange must be recorded in at least this fraction of the steps.
_USUAL = 0.5

Models = frozenset[int]


@dataclass(frozen=True)
class _Pass:
    """One backward pass that exchanged buckets."""

    #: Rows of the buckets, in order of issue.
    rows: Ints
    models: Models
    #: Number of updates before this pass.
    update: int


def _cycle(updated: Sequence[Models]) -> list[Models]:
    """Returns the models of each update in a cycle; empty if the updates do not repeat."""
    for length in range(1, len(updated) // 2 + 1):
        if all(updated[index] == updated[index % length] for index in range(len(updated))):
            return list(updated[:length])
    return []


def _keeping(updates: Sequence[Sequence[int]], length: int) -> list[Models]:
    """Returns, per update of a cycle, the models that keep their gradients from the update before.

    ``updates`` holds such models for each recorded update. Nothing is known of the first recorded
    update, so the first updates of later cycles are used instead. A cycle has ``length`` updates.
    """
    first = [length, *range(1, length)]
    return [frozenset(chain(*updates[index::length])) for index in first]


def _sets(model_bytes: Sequence[int]) -> dict[int, Models]:
    """Returns, by number of gradient bytes, the only set of models with this number of bytes."""
    by_bytes: dict[int, list[Models]] = {}
    numbers = [number for number, size in enumerate(model_bytes) if size]
    for count in range(1, len(numbers) + 1):
        for chosen in combinations(numbers, count):
            by_bytes.setdefault(sum(model_bytes[n] for n in chosen), []).append(frozenset(chosen))
    return {size: sets[0] for size, sets in by_bytes.items() if len(sets) == 1}


def _passes(calls: RankCalls, sets: dict[int, Models]) -> list[_Pass]:
    """Returns the passes of measured steps; empty if the models of a pass are unknown."""
    phases, steps = columns.phases(calls.trace), columns.steps(calls.trace)
    mine = (phases.key == Phase.OPTIMIZER) & (phases.thread == steps.thread[0])
    update_ns = np.sort(phases.begin_ns[mine])
    rows = np.flatnonzero(buckets_of_ddp(calls))
    rows = rows[np.lexsort((calls.table.issue_ns[rows], calls.table.graph_task[rows]))]
    task = calls.table.graph_task[rows]
    passes = []
    for of_pass in np.split(rows, np.flatnonzero(np.diff(task)) + 1):
        models = sets.get(int(calls.table.bytes_in[of_pass].sum()))
        if models is None:
            return []
        issue_ns = calls.table.issue_ns[of_pass[0]]
        passes.append(_Pass(of_pass, models, int(np.searchsorted(update_ns, issue_ns))))
    return sorted(passes, key=lambda passed: int(calls.table.issue_ns[passed.rows[0]]))


def _needless(
    calls: RankCalls, passes: list[_Pass], cycle: list[Models], keeping: list[Models]
) -> Mask | None:
    """Mask over the table: buckets that a pass exchanges for nothing.

    A later pass exchanges the gradients of such a bucket again before their model is updated.
    Returns None if the passes do not fit the updates.
    """
    table, mask = calls.table, np.zeros(len(calls.table), dtype=bool)
    alone = {passed.models: passed.rows for passed in reversed(passes)}
    usual: dict[tuple[Models, int], list[int]] = {}
    for index, passed in enumerate(passes):
        before = passes[index + 1].update if index + 1 < len(passes) else passed.update + 1
        updated = [cycle[number % len(cycle)] for number in range(passed.update, before)]
        if updated and not frozenset[int]().union(*updated) & passed.models:
            return None
        again = [
            model for model in passed.models if _is_again(model, index, passes, cycle, keeping)
        ]
        # The recording may end before the last gradients are exchanged again. So all passes of the
        # same models at the same place in the cycle get the result of the first such pass.
        again = usual.setdefault((passed.models, passed.update % len(cycle)), again)
        for model in again:
            sizes = alone.get(frozenset([model]))
            rows = passed.rows if sizes is None else _of_sizes(table.bytes_in, passed.rows, sizes)
            if len(again) < len(passed.models) and sizes is None:
                continue
            mask[rows] = True
    return mask


def _is_again(
    model: int, index: int, passes: list[_Pass], cycle: list[Models], keeping: list[Models]
) -> bool:
    """True if a later pass exchanges the model's gradients again before the model's next update.

    Another model must be updated between the two passes. False if the gradients are kept until the
    model's update, because the gradients of both passes may add up.
    """
    now = passes[index].update
    updates = (now + ahead for ahead in range(len(cycle)))
    its_update = next((k for k in updates if model in cycle[k % len(cycle)]), None)
    # A pass before the same update is a further micro batch, whose gradients add up with these.
    later = next(
        (
            passed
            for passed in passes[index + 1 :]
            if model in passed.models and passed.update > now
        ),
        None,
    )
    if its_update is None or later is None or later.update > its_update:
        return False
    between = range(now + 1, its_update + 1)
    return any(model not in keeping[number % len(cycle)] for number in between)


def _of_sizes(size_bytes: Ints, rows: Ints, like: Ints) -> Ints:
    """Returns the first of ``rows`` with the sizes of ``like``; empty if a size is missing."""
    wanted, chosen = Counter(size_bytes[like].tolist()), []
    for row in rows.tolist():
        if wanted[int(size_bytes[row])] > 0:
            wanted[int(size_bytes[row])] -= 1
            chosen.append(row)
    return np.array([] if +wanted else chosen, dtype=np.int64)


def _removed(calls: RankCalls, mask: Mask, copies: bool) -> Removed:
    """Removes the masked buckets, and their share of DDP's copies of gradients in their passes.

    DDP copies gradients out of the buckets at the end of a pass. If ``copies`` is True, DDP has
    also copied them into the buckets, which is assumed to take as long.
    """
    final, table = columns.finalizations(calls.trace), calls.table
    span = final.span
    ends = np.flatnonzero(np.isin(span.key, np.unique(table.graph_task[mask])))
    begin_ns, end_ns = [], []
    for row in ends.tolist():
        of_pass = table.graph_task == span.key[row]
        share = table.bytes_in[of_pass & mask].sum() / max(1, table.bytes_in[of_pass].sum())
        copied = span.end_ns[row] - span.begin_ns[row] - final.blocked_ns[row]
        moved = int(copied * share)
        begin_ns += [span.begin_ns[row] - moved * copies, span.end_ns[row] - moved]
        end_ns += [span.begin_ns[row], span.end_ns[row]]
    edges = np.array([begin_ns, end_ns], dtype=np.int64).reshape(2, -1)
    edges = edges[:, np.argsort(edges[0], kind="stable")]
    return Removed(mask, edges[0], edges[1])


def _look(calls: RankCalls) -> Mask:
    nothing = np.zeros(len(calls.table), dtype=bool)
    trained = trained_by(calls.trace.metadata)
    if trained is None or not 2 <= len(trained.ddp_model_bytes) <= MOST_MODELS:
        return nothing
    cycle = _cycle([frozenset(models) for models in trained.updated_models])
    if len(set(cycle)) < 2 or not all(cycle):
        return nothing
    if len(trained.kept_gradients) != len(trained.updated_models):
        return nothing
    passes = _passes(calls, _sets(trained.ddp_model_bytes))
    keeping = _keeping(trained.kept_gradients, len(cycle))
    mask = _needless(calls, passes, cycle, keeping) if passes else None
    return nothing if mask is None else mask


def _rule(facts: Facts) -> Sighting | None:
    if facts.ddp_models < 2:
        return None
    masks = facts.on_all_ranks(
        lambda calls: (calls, _look(calls)),
        lambda seen: len(np.unique(seen[0].step[seen[1]])) >= _USUAL * facts.steps,
    )
    if not masks:
        return None
    # Buckets are sent one after another, so these buckets delay all buckets of their passes.
    exposed = [
        float(calls.exposed_ns[np.isin(calls.table.graph_task, calls.table.graph_task[mask])].sum())
        for calls, mask in masks
    ]
    share = facts.share(exposed)
    if not share >= WORTH_NAMING:
        return None
    views = facts.logged("gradient_as_bucket_view")
    copies = bool(views) and not any(views) and not facts.on_device
    size = float(np.mean([calls.size_bytes[mask].sum() for calls, mask in masks])) / facts.steps
    return Sighting(
        f"DDP exchanges {in_bytes(size)} of gradients per step for nothing: a pass that leads to "
        "the update of one model also exchanges the gradients of another model, such as the "
        "discriminator of a GAN. These gradients are exchanged again before the other model is "
        "updated.",
        share,
        saving_without(facts, [_removed(calls, mask, copies) for calls, mask in masks]),
    )


CAUSE = CatalogueCause(
    id="ddp-other-model",
    title="A pass exchanges the gradients of a model that is not updated after this pass",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "The updates of several DDP models follow one another in a cycle. In at least "
        f"{_USUAL:.0%} of the steps, a pass exchanges the gradients of one model, then another "
        "model is updated, and then a second pass exchanges the gradients of the first model "
        "before its update. The script sets these gradients to None in between, as `zero_grad()` "
        "does. If the script keeps the gradients, this cause is not named, because the gradients "
        "of both passes may add up. The bytes of a pass show whose gradients it exchanges. In such "
        f"passes the training thread waits for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "The generator of a GAN learns through the discriminator, so that its backward pass also "
        "computes gradients of the discriminator's weights. DDP exchanges these gradients like all "
        "others, and then they are deleted. If the discriminator is frozen during this pass, its "
        "gradients are neither computed nor exchanged, and the generator gets the same gradients."
    ),
    gain_note=(
        "The steps are replayed without the buckets of this model in these passes, and without "
        "DDP's copies into and out of these buckets. Frozen weights also save the compute of their "
        "gradients. This time is not counted, so the fix wins more."
    ),
    fix=(
        "YOUR_DISCRIMINATOR.requires_grad_(False)  # for the generator's pass\n"
        "YOUR_LOSS(YOUR_DISCRIMINATOR(YOUR_GENERATOR(YOUR_BATCH))).backward()\n"
        "YOUR_DISCRIMINATOR.requires_grad_(True)"
    ),
    source="https://github.com/junyanz/pytorch-CycleGAN-and-pix2pix/issues/594",
    is_certain=True,
)
