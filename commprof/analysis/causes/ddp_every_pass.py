"""DDP exchanges the gradients of every micro batch, though the optimizer uses only their sum."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import DDP
from commprof.analysis.causes.edits.training_loop import last_pass_only
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.schema import OPS, Phase

_SCATTER = OPS.index("reduce_scatter_tensor")
#: At least this fraction of the updates must have the usual number of passes before them, or fewer.
_USUAL = 0.9


def exchanging_ns(calls: RankCalls) -> Ints:
    """Returns, for each pass that exchanged buckets, when DDP began to wait for the buckets.

    Passes with reduce-scatters are left out, because FSDP2 ends its passes in the same way.
    """
    span, table = columns.finalizations(calls.trace).span, calls.table
    of_ddp = ~np.isin(span.key, table.graph_task[table.op == _SCATTER])
    _, first = np.unique(span.key[of_ddp], return_index=True)  # several models may end one pass
    return np.sort(span.begin_ns[of_ddp][first])


def _needless(calls: RankCalls, copies: bool) -> tuple[Mask, Ints, Ints]:
    """Returns the calls of needless passes, and the begins and ends of these passes' final waits.

    Only the last pass before an update is needed. If DDP ``copies`` gradients, a final wait
    contains copies out of the buckets. The copies into the buckets are assumed to take as long, so
    each wait is made longer by this time.
    """
    phases, table = columns.phases(calls.trace), calls.table
    final = columns.finalizations(calls.trace)
    span = final.span
    copied = copies * (span.end_ns - span.begin_ns - final.blocked_ns)
    update = np.sort(phases.begin_ns[phases.key == Phase.OPTIMIZER])
    before = np.searchsorted(update, span.begin_ns)
    last = np.append(np.diff(before) != 0, True)[: len(before)]
    mask = np.isin(table.graph_task, span.key[~last]) & (calls.step >= 0)
    return mask, (span.begin_ns - copied)[~last], span.end_ns[~last]


def _same_buckets(calls: RankCalls) -> bool:
    table = calls.table
    rows = np.isin(table.graph_task, columns.finalizations(calls.trace).span.key)
    rows &= calls.step >= 0
    tasks = np.unique(table.graph_task[rows])
    sums = [int(table.bytes_in[rows & (table.graph_task == task)].sum()) for task in tasks[:200]]
    return bool(sums) and float(np.mean(np.array(sums) == np.median(sums))) >= _USUAL


def _rule(facts: Facts) -> Sighting | None:
    passes = facts.passes(exchanging_ns, lambda first: first.exchanged >= 2, once_each=True)
    if passes is None or passes.usual_share < _USUAL:
        return None
    if passes.last_share < _USUAL or not all(map(_same_buckets, facts.ranks)):
        return None
    if not facts.ddp_models or passes.exchanged <= facts.ddp_models:
        return None  # one exchange per model is no mistake
    views = facts.logged("gradient_as_bucket_view")
    copies = bool(views) and not any(views) and not facts.on_device
    parts = [_needless(calls, copies) for calls in facts.ranks]
    blocked = [
        float(calls.exposed_ns[mask].sum())
        for calls, (mask, _, _) in zip(facts.ranks, parts, strict=True)
    ]
    share = facts.share(blocked)
    if share < WORTH_NAMING:
        return None
    sent = sum(int(c.size_bytes[m].sum()) for c, (m, _, _) in zip(facts.ranks, parts, strict=True))
    per_step_mb = sent / len(facts.ranks) / facts.steps / 1e6
    which = f"all {passes.backward}"
    if passes.exchanged < passes.backward:
        which = f"{passes.exchanged} of the {passes.backward}"
    return Sighting(
        f"DDP exchanges the gradients in {which} backward passes before an update, though only "
        f"their sum is used: {passes.exchanged - 1} of {passes.exchanged} exchanges, "
        f"together {per_step_mb:.3g} MB per step, are needless.",
        share,
        saving_without(facts, [Removed(*part) for part in parts]),
    )


CAUSE = CatalogueCause(
    id="ddp-every-pass",
    title="DDP exchanges the gradients of every micro batch",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "Before each update, at least two backward passes end with an exchange of DDP's buckets. "
        "There are more such passes than DDP models, and the last pass before the update is such a "
        "pass. At least nine of ten updates follow the usual number of such passes, or fewer. At "
        "least nine of ten such passes exchange the same number of bytes. In all these exchanges "
        f"but the last, the training thread waits for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "With gradient accumulation several micro batches add to the gradients before the "
        "optimizer steps. By default, DDP averages the gradients over the ranks at the end of "
        "every backward pass. One exchange at the end of the last pass gives the same average. "
        "`no_sync()` must surround both forward and backward: around backward alone it has no "
        "effect. An optimizer such as SAM needs the averaged gradients of each pass, so with such "
        "an optimizer the exchanges are no mistake."
    ),
    gain_note=(
        "The steps are replayed without these exchanges and without DDP's copies. The copies out "
        "of the buckets were measured, and the copies into the buckets are assumed to take as "
        "long. DDP's other work for each gradient in such a pass is not recorded, so the fix wins "
        "somewhat more."
    ),
    fix=(
        "import contextlib\n\n"
        "for i, batch in enumerate(YOUR_MICRO_BATCHES):\n"
        "    last = i == len(YOUR_MICRO_BATCHES) - 1\n"
        "    with contextlib.nullcontext() if last else YOUR_MODEL.no_sync():\n"
        "        YOUR_LOSS(YOUR_MODEL(batch)).backward()"
    ),
    edit=lambda facts, _: last_pass_only(facts.script, facts.script.model(*DDP)),
    source="https://github.com/pytorch/pytorch/issues/43201",
    is_certain=True,
)
