"""DDP exchanges gradients of parameters that are not trained."""

from __future__ import annotations

import ast

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.ddp_small_buckets import buckets_of_ddp
from commprof.analysis.causes.ddp_unused_parameters import searched
from commprof.analysis.causes.edits.model_settings import DDP
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import Saving
from commprof.text import in_bytes

#: Parameters without a gradient must have at least this fraction of the exchanged bytes.
_UNUSED = 0.3


def _rule(facts: Facts) -> Sighting | None:
    least = facts.logged("least_unused_parameter_size")
    if facts.ddp_models != 1 or not least or not min(least) > 0:
        return None
    sizes = [int(size) for size in facts.ddp_logs[0].get("parameter_bytes", ())]
    unused = min(least) / sum(sizes) if sizes else 0.0
    if unused < _UNUSED:
        return None
    exposed = [float(calls.exposed_ns[buckets_of_ddp(calls)].sum()) for calls in facts.ranks]
    share = facts.share(exposed)
    if not share >= WORTH_NAMING:
        return None
    return Sighting(
        f"DDP exchanges {in_bytes(sum(sizes))} of gradients per pass, and {in_bytes(min(least))} "
        f"of them, {unused:.0%}, or more belong to parameters that got no gradient in the pass: a "
        "rank sends zeros or old values for them. Freeze parameters that are never trained before "
        "the model is given to DDP.",
        share,
        _saving(facts, sum(sizes) - min(least)),
    )


def _saving(facts: Facts, used_bytes: int) -> Saving | None:
    """Returns the saving if each bucket carried only gradients of used parameters.

    It is not known which buckets hold these gradients, so each bucket keeps at most ``used_bytes``.
    The time of DDP's search for unused parameters is removed too.
    """
    changed = []
    for calls, transfer_ns in zip(facts.ranks, facts.transfer_ns, strict=False):
        used = np.minimum(1.0, used_bytes / np.maximum(1, calls.size_bytes))
        changed.append(np.where(buckets_of_ddp(calls), used * transfer_ns, np.nan))
    if not changed:
        return None
    search = searched(facts)
    nothing = [Removed.only(np.zeros(len(calls.table), dtype=bool)) for calls in facts.ranks]
    return saving_without(facts, nothing if search is None else search.removed, changed)


def _edit(facts: Facts) -> str:
    site = facts.script.only(*DDP)
    trained = facts.first.trace.metadata.get("trained") or {}
    modules = [str(name) for name in trained.get("untrained_modules") or ()]
    if site is None or not modules or not site.call.args:
        return ""
    if not isinstance(site.call.args[0], ast.Name):
        return ""
    model = site.call.args[0].id
    lines = [f'{model}.get_submodule("{name}").requires_grad_(False)' for name in modules]
    wrapped = site.source.with_settings(site.call, {"find_unused_parameters": False})
    if not wrapped:
        return ""
    return "\n".join([site.source.before(site.statement, "\n".join(lines)), wrapped])


CAUSE = CatalogueCause(
    id="ddp-frozen-gradients",
    title="DDP exchanges the gradients of parameters that are not trained",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "The job trains one DDP model. "
        f"In every pass that DDP's log sampled, at least {_UNUSED:.0%} of the gradients' bytes "
        "belong to parameters that were not used. The training thread waits for DDP's buckets for "
        f"at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "When DDP is made, it puts every parameter that requires a gradient into a bucket, and in "
        "each step it sends all buckets. If most of a model is frozen later, or the loss does not "
        "reach most of the model, almost all bytes are sent for nothing. An example is a large "
        "model of which only adapters are trained. Parameters that are frozen before DDP is made "
        "are not sent."
    ),
    gain_note=(
        "The steps are replayed with smaller buckets: no bucket has more bytes than all trained "
        "parameters together. The exchange of each bucket is shortened in proportion."
    ),
    fix=(
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        'chosen = [p for group in YOUR_OPTIMIZER.param_groups for p in group["params"]]\n'
        "YOUR_MODEL.requires_grad_(False)\n"
        "for parameter in chosen:  # what is trained\n"
        "    parameter.requires_grad_(True)\n"
        "model = DistributedDataParallel(YOUR_MODEL)  # after freezing"
    ),
    edit=lambda facts, _: _edit(facts),
    source="https://github.com/pytorch/pytorch/issues/22049",
)
