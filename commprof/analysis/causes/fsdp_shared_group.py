"""FSDP2's all-gathers wait for reduce-scatters of the same group."""

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

#: Least gain (low end of the interval), as a fraction of the step. The fraction is large because a
#: second group costs memory.
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
        "FSDP2's all-gathers in backward wait for earlier reduce-scatters, because calls of one "
        "group run one after the other. If the reduce-scatters use a group of their own, both "
        "kinds of calls can run at the same time, as far as the network allows.",
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
    """Returns, for each call, the row of the previous call of its kind in its group, or -1.

    Reduce-scatters are one kind, and all other calls are the second kind.

    ``before``: for each call, the row of the previous call of any kind in its group, or -1.
    """
    first_rows = before.copy()
    while True:
        other = (first_rows >= 0) & (is_scatter[first_rows] != is_scatter)
        if not other.any():
            return first_rows
        first_rows[other] = before[first_rows[other]]


CAUSE = CatalogueCause(
    id="fsdp-shared-group",
    title="FSDP2's all-gathers wait for its reduce-scatters",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "All-gathers and reduce-scatters use the same group. A replay of the steps with a separate "
        f"group for the reduce-scatters is shorter by at least {_WORTH:.0%} (low end of the "
        "interval)."
    ),
    why=(
        "Collectives of one group run one after the other. In backward, the all-gather of the next "
        "block waits for the reduce-scatter of the previous block, and compute waits for the "
        "all-gather. Nothing needs the result of the reduce-scatter yet. With a second group, both "
        "calls can run at the same time. The second group takes memory for its buffers on each GPU."
    ),
    gain_note=(
        "Not predicted, because calls of both kinds may be slower if they use the network at the "
        "same time. The replay ignores this, so its result is the most that the fix can save. A "
        "trial measures the gain: `commprof run --trial scatter-group=own`."
    ),
    fix="YOUR_MODEL.set_separate_reduce_scatter_group(True)  # from torch 2.13 on",
    edit=lambda facts, _: after_sharding(facts.script, "set_separate_reduce_scatter_group(True)"),
    source="https://github.com/pytorch/pytorch/pull/186335",
)
