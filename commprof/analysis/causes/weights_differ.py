"""The parameters of some ranks are not bit-identical with those of most ranks."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import DDP
from commprof.analysis.causes.edits.training_loop import before_training
from commprof.analysis.causes.facts import Facts
from commprof.text import counted, named_ranks


def _rule(facts: Facts) -> Sighting | None:
    for trace in facts.seen.traces:
        checks = trace.metadata.get("sync_checks") or {}
        if ranks := [int(rank) for rank in checks.get("ranks", ())]:
            return Sighting(
                f"The model of {named_ranks(ranks)} is not bit-identical with that of most other "
                f"ranks, from step {checks['first_step']} on at the latest "
                f"({counted(int(checks['checks']), 'comparison')}, --check-sync). Each rank "
                "trains a model of its own."
            )
    return None


_FIX = (
    "with torch.no_grad():  # once, before training\n"
    "    for tensor in YOUR_MODEL.state_dict().values():\n"
    "        torch.distributed.broadcast(tensor, src=0)"
)


def _edit(facts: Facts) -> str:
    model = facts.script.model(*DDP)
    code = _FIX.replace("YOUR_MODEL", model)
    return before_training(facts.script, code, model) if model else ""


CAUSE = CatalogueCause(
    id="weights-differ",
    title="The ranks begin with different weights, or their weights drift apart",
    needs=(),
    rule=_rule,
    looks_like=(
        "`commprof run --check-sync N` compares a hash of the DDP models' parameters on all ranks "
        "every N steps, and the hash of some ranks differs from the hash of most ranks."
    ),
    why=(
        "Averaged gradients keep models equal only if they were equal. DDP sends rank 0's weights "
        "once, when DDP is made. A script must itself keep the models equal if it averages "
        "gradients itself, changes weights after that, or steps an optimizer on some ranks only. "
        "So must a script that updates parameters with gradients that DDP has not averaged: those "
        "of parameters that were frozen when DDP was made (make DDP again), and those that a hook "
        "of `register_post_accumulate_grad_hook` uses, which runs before DDP's exchange. The loss "
        "still falls on every rank, so nothing shows that the saved model is that of one rank "
        "alone."
    ),
    fix=_FIX,
    edit=lambda facts, _: _edit(facts),
    source="https://github.com/pytorch/torchtitan/issues/166",
    is_wrong=True,
)
