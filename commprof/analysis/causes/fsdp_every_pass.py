"""FSDP reduces the gradients of every micro batch."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import sharded_model
from commprof.analysis.causes.edits.training_loop import last_pass_only
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.passes_of_updates import lines_of_passes
from commprof.analysis.causes.sharded_library import fsdp_of, is_flat, library
from commprof.analysis.collectives.sharding import reductions
from commprof.analysis.evidence import Figure
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.schema import OPS, Phase

_SCATTER = OPS.index("reduce_scatter_tensor")
_FIX_OF_FSDP1 = (
    "import contextlib\n\n"
    "for i, batch in enumerate(YOUR_MICRO_BATCHES):\n"
    "    last = i == len(YOUR_MICRO_BATCHES) - 1\n"
    "    with contextlib.nullcontext() if last else YOUR_MODEL.no_sync():\n"
    "        YOUR_LOSS(YOUR_MODEL(batch)).backward()"
)
_SETTER = "set_requires_gradient_sync"
#: At least this fraction of the updates must follow the usual number of passes, or fewer.
_USUAL = 0.9


def _scatters(calls: RankCalls) -> Mask:
    mask: Mask = (calls.table.op == _SCATTER) & (calls.table.graph_task >= 0)
    return mask


def _reducing_ns(calls: RankCalls) -> Ints:
    return calls.table.issue_ns[_scatters(calls)]


def _needless(calls: RankCalls) -> Mask:
    """Returns a mask of the reductions in all but the last backward pass before an update."""
    phases, table = columns.phases(calls.trace), calls.table
    rows = np.flatnonzero(reductions(calls.trace, table, int(calls.begin_ns[0])))
    update = np.sort(phases.begin_ns[phases.key == Phase.OPTIMIZER])
    before = np.searchsorted(update, table.issue_ns[rows])
    # For each update, autograd's id of the last backward pass before the update.
    last = np.zeros(int(before.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(last, before, table.graph_task[rows])
    mask = np.zeros(len(table), dtype=bool)
    mask[rows[table.graph_task[rows] != last[before]]] = True
    return mask & (calls.step >= 0)


def _of_several_models(calls: RankCalls) -> bool:
    """True if the passes of an update are of several models, such as an actor and a critic.

    This is assumed if different lines of the script call the model in the first and in later
    passes.
    """
    first, later = lines_of_passes(calls)
    return bool(first) and bool(later) and first.isdisjoint(later)


def _with_copies(facts: Facts, position: int, mask: Mask) -> Removed:
    calls = facts.ranks[position]
    if facts.on_device:
        return Removed.only(mask)
    noted = Removed.with_noted(calls, mask, facts.noted_ns(position, "fsdp_reductions"))
    return noted or Removed.only(mask)


def _rule(facts: Facts) -> Sighting | None:
    if fsdp_of(facts) is None:
        return None
    passes = facts.passes(_reducing_ns, lambda first: first.exchanged >= 2)
    if passes is None or passes.usual_share < _USUAL:
        return None
    if passes.last_share < _USUAL or any(map(_of_several_models, facts.ranks)):
        return None
    masks = [_needless(calls) for calls in facts.ranks]
    exposed = [
        float(calls.exposed_ns[mask].sum()) for calls, mask in zip(facts.ranks, masks, strict=True)
    ]
    share = facts.share(exposed)
    if share < WORTH_NAMING:
        return None
    size = float(facts.first.size_bytes[masks[0]].sum()) / facts.steps / 1e6
    return Sighting(
        f"{library(facts)} reduce-scatters the gradients in {passes.exchanged} of the "
        f"{passes.backward} backward passes before an update. Only the last reduction is needed if "
        "there is memory for the gradients of the whole model. The needless reductions send "
        f"{size:.3g} MB per step.",
        share,
        saving_without(facts, [_with_copies(facts, *of_rank) for of_rank in enumerate(masks)]),
    )


CAUSE = CatalogueCause(
    id="fsdp-every-pass",
    title="FSDP reduces the gradients of every micro batch",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "Before each update, at least two backward passes issue reduce-scatters, and the last pass "
        "does so too. In nine of ten updates the number of such passes is the same, or smaller at "
        f"the end of an epoch. The training thread waits for at least {WORTH_NAMING:.0%} of the "
        "step for the reduce-scatters of all passes but the last. The cause is not named if "
        "different lines of the script call the model in the first pass and in the later passes: "
        "the passes are then of different models."
    ),
    why=(
        "Gradient accumulation uses only the sum of the micro batches' gradients. By default, "
        "FSDP2 nevertheless reduces the gradients after every backward pass. Without these "
        "reductions each rank keeps unsharded gradients until the last pass, which takes memory "
        "for the gradients of the whole model. `no_sync()` works with DDP and FSDP1, but not with "
        "FSDP2. If there is too little memory, keep the reductions. With HSDP, "
        "`set_requires_all_reduce(last)` can then still avoid the all-reduces between the "
        "replicas, and needs no additional memory."
    ),
    gain_note=(
        "The steps are replayed without these reductions and without FSDP's copies of gradients "
        "for them. On GPUs and in recordings of other tools, the copies cannot be distinguished "
        "from the backward pass. There the fix saves somewhat more than predicted."
    ),
    fix=(
        "for i, batch in enumerate(YOUR_MICRO_BATCHES):\n"
        "    last = i == len(YOUR_MICRO_BATCHES) - 1\n"
        f"    YOUR_MODEL.{_SETTER}(last)\n"
        "    YOUR_LOSS(YOUR_MODEL(batch)).backward()"
    ),
    edit=lambda facts, _: last_pass_only(
        facts.script, sharded_model(facts.script), "" if is_flat(facts) else _SETTER
    ),
    fix_of_fsdp1=_FIX_OF_FSDP1,
    source="https://github.com/NVIDIA/cosmos-framework/issues/161",
    is_certain=True,
)
