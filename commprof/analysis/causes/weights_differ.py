"""The model parameters of some ranks differ from the parameters of most ranks."""

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
                f"The model of {named_ranks(ranks)} is not bit-identical with the model of most "
                f"other ranks. The difference began at step {checks['first_step']} or earlier "
                f"({counted(int(checks['checks']), 'comparison')}, --check-sync). The ranks train "
                "different models."
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
        "Averaged gradients keep the ranks' models equal only if the models were equal before. DDP "
        "sends rank 0's weights to all ranks once, when the DDP model is made. The models can "
        "differ if the script averages gradients itself, changes weights later, or updates weights "
        "on some ranks only. They also differ if parameters are updated with gradients that DDP "
        "has not averaged. DDP does not average gradients of parameters that were frozen when the "
        "DDP model was made; in this case, make the DDP model again. A hook of "
        "`register_post_accumulate_grad_hook` runs before DDP averages the gradients. The loss "
        "falls on every rank in all these cases, so nothing shows that the saved model is that of "
        "one rank alone."
    ),
    fix=_FIX,
    edit=lambda facts, _: _edit(facts),
    source="https://github.com/pytorch/torchtitan/issues/166",
    is_wrong=True,
)
