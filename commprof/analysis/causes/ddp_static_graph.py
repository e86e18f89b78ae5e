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
        "(find_unused_parameters=True), and each time finds the same parameters "
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
        "In all passes that DDP's log sampled, it counts the same bytes of unused parameters, and "
        "not 0. The search and the all-reduce of one mark per parameter take at least "
        f"{WORTH:.0%} of the step."
    ),
    why=(
        "A model with a head that is not trained, or with parts that were frozen after DDP "
        "was made, leaves the same parameters without a gradient in every pass. "
        "`find_unused_parameters=True` looks for them anew each time, and the ranks exchange what "
        "they found. `static_graph=True` looks once, in the first pass. Parameters that are never "
        "trained are better frozen before DDP is made, which also spares the exchange of their "
        "gradients."
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
