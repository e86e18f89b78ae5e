"""DDP searches for unused parameters in every pass, and always finds the same ones."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.ddp_unused_parameters import WORTH, searched
from commprof.analysis.causes.edits.model_settings import DDP, with_settings
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.gain import saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes

_LAST, _MOST, _LEAST = (f"{which}unused_parameter_size" for which in ("", "most_", "least_"))


def _rule(facts: Facts) -> Sighting | None:
    last, most, least = facts.logged(_LAST), facts.logged(_MOST), facts.logged(_LEAST)
    if not last or not all(most) or not last == most == least:
        return None
    if (search := searched(facts)) is None:
        return None
    return Sighting(
        "DDP searches the autograd graph for unused parameters in every pass "
        "(find_unused_parameters=True), and each time finds parameters of the same size "
        f"({in_bytes(max(most))}). {search.cost}",
        search.share,
        saving_without(facts, search.removed),
    )


CAUSE = CatalogueCause(
    id="ddp-static-graph",
    title="DDP searches for unused parameters in every pass, and always finds the same ones",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "All DDP models were made with `find_unused_parameters=True` and without `static_graph`. "
        "DDP's log counts the same number of bytes of unused parameters, more than 0, in all "
        "passes that it sampled. The search and the all-reduce of one mark per parameter take at "
        f"least {WORTH:.0%} of the step."
    ),
    why=(
        "A model with a head that is not trained, or with parts that were frozen after DDP "
        "was made, leaves the same parameters without a gradient in every pass. "
        "With `find_unused_parameters=True`, DDP looks for these parameters in every pass, and the "
        "ranks exchange the results. With `static_graph=True`, DDP looks once, in the first pass. "
        "It is better to freeze parameters that are never trained before DDP is made, because "
        "their gradients are then not exchanged either."
    ),
    fix=(
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        "model = DistributedDataParallel(YOUR_MODEL, static_graph=True)"
    ),
    edit=lambda facts, _: with_settings(
        facts.script, DDP, find_unused_parameters=False, static_graph=True
    ),
    source="https://github.com/huggingface/transformers/issues/45518",
    worth=WORTH,
)
