"""FSDP2's all-gathers wait behind reduce-scatters of the same group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import after_sharding
from commprof.analysis.causes.facts import Facts, Mask
from commprof.analysis.causes.sharded_library import fsdp_of, is_flat
from commprof.analysis.evidence import Figure
from commprof.analysis.replay.engine import replay
from commprof.stats.intervals import Interval
from commprof.trace.columns import Ints
from commprof.trace.schema import OPS

#: The cause is named only if the low end of the gain is at least this fraction of the step. The
#: fraction is large, because a second group costs memory and shares the network.
_WORTH = 0.05
_GATHER, _SCATTER = map(OPS.index, ("all_gather_into_tensor", "reduce_scatter_tensor"))


def _rule(facts: Facts) -> Sighting | None:
    if fsdp_of(facts) is None or not _same_group(facts):
        return None
    if is_flat(facts):  # FSDP1 has no such setting
        return None
    saved = _apart(facts)
    if saved is None or saved.low < _WORTH:
        return None
    return Sighting(
        "FSDP2's all-gathers in backward wait until earlier reduce-scatters are done, because "
        "both use one group, whose calls run one after the other. With a group for reduce-scatters "
        "alone both can overlap, as far as the network carries them.",
        saved.value,
    )


def _same_group(facts: Facts) -> bool:
    table = facts.first.table
    gathering, scattering = (table.group[table.op == op] for op in (_GATHER, _SCATTER))
    return bool(np.isin(gathering, scattering).any())


def _apart(facts: Facts) -> Interval | None:
    """Replays the steps with the reduce-scatters in a group of their own."""
    recorded = facts.replays
    base = None if recorded is None else recorded.step_ns()
    if recorded is None or base is None:
        return None
    is_scatter: Mask = np.concatenate([calls.table.op == _SCATTER for calls in facts.ranks])
    steps = []
    for ranks, calls in recorded.stretches:
        times = replay(ranks, replace(calls, before=_same_kind(calls.before, is_scatter)))
        if times is None:
            return None
        steps.append(times)
    return recorded.saved(base, np.concatenate(steps))


def _same_kind(before: Ints, is_scatter: Mask) -> Ints:
    """Returns, for each call, the row of the last call of its kind before it in its group, or -1.

    Reduce-scatters are one kind; all other calls are the other kind.

    ``before``: for each call, the row of the call before it in its group; -1 if there is none.
    """
    first_rows = before.copy()
    while True:
        other = (first_rows >= 0) & (is_scatter[first_rows] != is_scatter)
        if not other.any():
            return first_rows
        first_rows[other] = before[first_rows[other]]


CAUSE = CatalogueCause(
    id="fsdp-shared-group",
    title="FSDP2's all-gathers queue behind its reduce-scatters",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "All-gathers and reduce-scatters use the same group. If the steps are replayed with a "
        "separate group for the reduce-scatters, they are shorter by at least "
        f"{_WORTH:.0%} (low end of the interval)."
    ),
    why=(
        "Collectives of one group share a communicator and follow one another. In backward, the "
        "next block's all-gather queues behind the previous block's reduce-scatter, and compute "
        "waits for the gather though nothing needs the scatter's result yet. With "
        "a second group both are in progress at once; the second group costs a communicator's "
        "buffers on each GPU."
    ),
    gain_note=(
        "Not predicted, because the network may be slower when it carries both kinds of calls at "
        "once. The replay ignores this, so that its result is the most that the fix can win. A "
        "trial measures "
        "it: `commprof run --trial scatter-group=own`."
    ),
    fix="YOUR_MODEL.set_separate_reduce_scatter_group(True)  # from torch 2.13 on",
    edit=lambda facts, _: after_sharding(facts.script, "set_separate_reduce_scatter_group(True)"),
    source="https://github.com/pytorch/pytorch/pull/186335",
)
