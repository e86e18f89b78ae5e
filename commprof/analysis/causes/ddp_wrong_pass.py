"""DDP exchanges the gradients of an early micro batch, and never those of later micro batches."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.ddp_every_pass import exchanging_ns
from commprof.analysis.causes.edits.model_settings import DDP
from commprof.analysis.causes.edits.training_loop import last_pass_only
from commprof.analysis.causes.facts import Facts
from commprof.text import counted

#: Before at least this fraction of the updates, the last pass exchanges nothing.
_MOSTLY = 0.9
#: Least number of recorded updates.
_UPDATES = 5


def _rule(facts: Facts) -> Sighting | None:
    passes = facts.passes(
        exchanging_ns, lambda first: 0 < first.exchanged < first.backward, once_each=True
    )
    if passes is None:
        return None
    if passes.updates < _UPDATES or passes.last_share > 1 - _MOSTLY or facts.ddp_models != 1:
        return None
    return Sighting(
        f"The ranks' weights drift apart: DDP exchanges gradients in {passes.exchanged} of the "
        f"{passes.backward} backward passes before an update, but not in the last one. The "
        "gradients of the passes after the exchange reach no other rank. This was recorded for "
        f"{counted(passes.updates, 'update')}."
    )


CAUSE = CatalogueCause(
    id="ddp-wrong-pass",
    title="DDP exchanges the wrong micro batch, and the ranks' weights drift apart",
    needs=(),
    rule=_rule,
    looks_like=(
        "The job trains one DDP model. "
        "Of several backward passes before an update, some end with an exchange of DDP's buckets. "
        f"Before at least {_MOSTLY:.0%} of the updates, the last pass exchanges nothing. "
        f"At least {_UPDATES} updates were recorded."
    ),
    why=(
        "With gradient accumulation only the last backward pass before the update may exchange "
        "gradients, outside of `no_sync()`. If an earlier pass exchanges them (`batch_idx % n == "
        "0` in place of `(batch_idx + 1) % n == 0`), the passes after it add gradients that no "
        "other rank gets. Each rank then trains a different model, and the loss does not show it."
    ),
    fix=(
        "import contextlib\n\n"
        "for i, batch in enumerate(YOUR_MICRO_BATCHES):\n"
        "    last = i == len(YOUR_MICRO_BATCHES) - 1  # not i == 0\n"
        "    with contextlib.nullcontext() if last else YOUR_MODEL.no_sync():\n"
        "        YOUR_LOSS(YOUR_MODEL(batch)).backward()"
    ),
    edit=lambda facts, _: last_pass_only(facts.script, facts.script.model(*DDP)),
    source="https://github.com/modelscope/FunASR/pull/3472",
    is_wrong=True,
)
