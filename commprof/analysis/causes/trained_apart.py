"""Each rank trains a model of its own: some or all gradients are never exchanged."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import wrapped_model
from commprof.analysis.causes.facts import Facts


def _rule(facts: Facts) -> Sighting | None:
    apart = facts.world.communication.apart
    return Sighting(apart.sentence) if apart is not None and apart.advice else None


CAUSE = CatalogueCause(
    id="trained-apart",
    title="The ranks do not train together",
    needs=(),
    rule=_rule,
    looks_like=(
        "Ranks compute gradients and update parameters, but the gradients of some or all "
        "parameters are never exchanged, or never between some sets of ranks, neither in backward "
        "nor by other collectives or messages. The cause is not named if the recording may lack "
        "an exchange."
    ),
    why=(
        "Every rank trains a separate model on its part of the data. This happens if the model is "
        "not wrapped, if the script calls the inner model instead of the wrapper, or if a "
        "launcher's settings have no effect on this hardware. The job is fast and the loss falls, "
        "but only one rank's model is used in the end."
    ),
    fix=(
        "model = torch.nn.parallel.DistributedDataParallel(YOUR_MODEL)\n"
        "output = model(YOUR_BATCH)  # the wrapper, not model.module"
    ),
    edit=lambda facts, _: wrapped_model(facts.script),
    source="https://github.com/jingyaogong/minimind/issues/853",
    is_wrong=True,
)
