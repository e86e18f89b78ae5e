"""DDP searches for unused parameters in every pass, and there are none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import DDP, with_settings
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace.columns import Ints

#: DDP's search, and the all-reduce of its result, must take at least this fraction of the step.
WORTH = 0.01
#: Number of bytes that one parameter takes in the all-reduce of the search's result.
_MARK_BYTES = 4


def _marks(calls: RankCalls, parameters: set[int]) -> Mask:
    """Mask: all-reduces that DDP issues after backward, with a 32-bit mark per parameter."""
    names = list(calls.trace.metadata.get("dtypes", ()))
    whole = [number * _MARK_BYTES for number in parameters]
    mask: Mask = calls.chosen(["all_reduce"]) & (calls.table.graph_task >= 0)
    mask = mask & (calls.table.dtype == (names.index("Int") if "Int" in names else -1))
    return mask & sum((calls.size_bytes == size for size in whole), start=mask & False)


def _with_search(removed: Removed, begin_ns: Ints, end_ns: Ints) -> Removed:
    return Removed(
        removed.calls,
        np.concatenate([removed.begin_ns, begin_ns]),
        np.concatenate([removed.end_ns, end_ns]),
    )


def _rule(facts: Facts) -> Sighting | None:
    unused = facts.logged("most_unused_parameter_size")
    if not unused or any(unused) or (search := searched(facts)) is None:
        return None
    return Sighting(
        "DDP searches the autograd graph for unused parameters in every pass "
        f"(find_unused_parameters=True) and has found none. {search.cost}",
        search.share,
        saving_without(facts, search.removed),
    )


@dataclass(frozen=True)
class SearchCost:
    """The cost of DDP's search for unused parameters."""

    share: float
    removed: list[Removed]
    #: A sentence on the search and its cost.
    cost: str


def searched(facts: Facts) -> SearchCost | None:
    """Returns the cost of the search and of the ranks' agreement on its result.

    None if the cost is small, if a model does not search, if a model has a static graph, or if no
    all-reduce of the result is recorded in a typical step.
    """
    set_so = facts.logged("find_unused_parameters")
    if not set_so or not all(set_so) or any(facts.logged("static_graph")):
        return None
    masks = [_marks(calls, set(facts.logged("num_parameter_tensors"))) for calls in facts.ranks]
    if facts.first.per_step(masks[0]) < 1:
        return None
    exposed = [
        float(calls.exposed_ns[mask].sum()) for calls, mask in zip(facts.ranks, masks, strict=True)
    ]
    searches = [facts.noted_ns(position, "ddp_searches") for position in range(len(facts.ranks))]
    searching = [float((end - begin).sum()) for begin, end in searches]
    share = facts.share([a + b for a, b in zip(exposed, searching, strict=True)])
    if not share >= WORTH:
        return None
    removed = [
        _with_search(Removed.whole(calls, mask), *times)
        for calls, mask, times in zip(facts.ranks, masks, searches, strict=True)
    ]
    search_ms = facts.per_step_ms(searching)
    # The time for which ranks wait in this all-reduce shows little about its cost, because the
    # buckets end at about the same time.
    cost = f"The search takes {in_ms(search_ms)} per step, and the" if search_ms else "The"
    agreed = f"{cost} ranks agree on its result by one more all-reduce after backward."
    return SearchCost(share, removed, agreed)


CAUSE = CatalogueCause(
    id="ddp-unused-parameters",
    title="DDP searches for unused parameters, and there are none",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "All DDP models were made with `find_unused_parameters=True` and without `static_graph`. "
        "DDP's log counts no unused parameter in the passes that it sampled. The search and the "
        f"all-reduce of one mark per parameter take at least {WORTH:.0%} of the step."
    ),
    worth=WORTH,
    why=(
        "With `find_unused_parameters=True` DDP walks through the autograd graph after each "
        "forward pass. After backward, one more all-reduce finds the parameters that any rank "
        "used. DDP also does not sort the buckets by when their gradients become ready. "
        "None of this is needed if every parameter gets a gradient. If the same parameters are "
        "unused in every pass, use `static_graph=True`. The Trainer of transformers searches by "
        "default; `TrainingArguments(ddp_find_unused_parameters=False)` turns this off."
    ),
    fix=(
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        "model = DistributedDataParallel(YOUR_MODEL, find_unused_parameters=False)"
    ),
    edit=lambda facts, _: with_settings(facts.script, DDP, find_unused_parameters=False),
    source="https://github.com/m2lines/Samudra/issues/630",
)
