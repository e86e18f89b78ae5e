"""The catalogue of causes, and the search for the causes that a recording shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from commprof.analysis.causes import (
    anomaly_mode,
    barrier_each_step,
    batches_from_one_rank,
    compiled_anew,
    ddp_buffers,
    ddp_each_module,
    ddp_every_pass,
    ddp_frozen_gradients,
    ddp_one_bucket,
    ddp_other_model,
    ddp_small_buckets,
    ddp_static_graph,
    ddp_unused_parameters,
    ddp_wrong_pass,
    debug_detail,
    epoch_not_set,
    evaluated_by_all,
    exchanged_again,
    fewer_batches,
    fsdp_every_pass,
    fsdp_gathers_each_pass,
    fsdp_gathers_twice,
    fsdp_one_unit,
    fsdp_shared_group,
    fsdp_small_units,
    garbage_in_turns,
    gathered_gradients,
    gathered_outputs,
    gathered_parameters,
    groups_in_turns,
    groups_made_anew,
    host_tensors,
    late_embedding,
    late_loading,
    own_exchange,
    pass_each_step,
    pickled_objects,
    pipeline_bubble,
    rank_alone,
    rank_busier,
    ranks_in_turns,
    same_core,
    scalar_each_step,
    scalars_every_pass,
    scalars_one_by_one,
    slow_interface,
    statistics_each_layer,
    tensors_one_by_one,
    too_many_threads,
    trained_apart,
    uneven_batches,
    weights_differ,
    workers_restarted,
    zero_one_by_one,
)
from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.sharded_library import is_flat
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import NamedCause
from commprof.analysis.step.measured import MeasuredWorld
from commprof.analysis.world import WorldResult
from commprof.trace.schema import Phase

#: All causes, in the order of docs/causes.md.
CAUSES: Final[tuple[CatalogueCause, ...]] = (
    trained_apart.CAUSE,
    weights_differ.CAUSE,
    ddp_wrong_pass.CAUSE,
    ddp_every_pass.CAUSE,
    ddp_other_model.CAUSE,
    ddp_buffers.CAUSE,
    ddp_unused_parameters.CAUSE,
    ddp_static_graph.CAUSE,
    ddp_frozen_gradients.CAUSE,
    ddp_small_buckets.CAUSE,
    ddp_each_module.CAUSE,
    ddp_one_bucket.CAUSE,
    exchanged_again.CAUSE,
    own_exchange.CAUSE,
    statistics_each_layer.CAUSE,
    fsdp_one_unit.CAUSE,
    fsdp_small_units.CAUSE,
    fsdp_every_pass.CAUSE,
    fsdp_gathers_each_pass.CAUSE,
    fsdp_gathers_twice.CAUSE,
    fsdp_shared_group.CAUSE,
    scalars_one_by_one.CAUSE,
    scalars_every_pass.CAUSE,
    scalar_each_step.CAUSE,
    tensors_one_by_one.CAUSE,
    zero_one_by_one.CAUSE,
    gathered_outputs.CAUSE,
    gathered_parameters.CAUSE,
    gathered_gradients.CAUSE,
    debug_detail.CAUSE,
    anomaly_mode.CAUSE,
    pickled_objects.CAUSE,
    groups_in_turns.CAUSE,
    groups_made_anew.CAUSE,
    pipeline_bubble.CAUSE,
    host_tensors.CAUSE,
    barrier_each_step.CAUSE,
    rank_alone.CAUSE,
    evaluated_by_all.CAUSE,
    rank_busier.CAUSE,
    garbage_in_turns.CAUSE,
    ranks_in_turns.CAUSE,
    compiled_anew.CAUSE,
    late_loading.CAUSE,
    workers_restarted.CAUSE,
    pass_each_step.CAUSE,
    batches_from_one_rank.CAUSE,
    uneven_batches.CAUSE,
    epoch_not_set.CAUSE,
    late_embedding.CAUSE,
    too_many_threads.CAUSE,
    same_core.CAUSE,
    slow_interface.CAUSE,
    fewer_batches.CAUSE,
)


def named_causes(
    context: Mapping[str, Any], world: WorldResult, seen: MeasuredWorld
) -> tuple[NamedCause, ...]:
    """Returns the causes that a recording shows at one world size.

    Causes of wrong results come first, then the causes with the largest gains. Empty for a single
    rank or without measured steps. Causes that depend on calls are left out if too many calls have
    no recorded size.
    """
    if world.world_size < 2 or not world.timing.measured_steps or not world.parts.step_ms > 0:
        return ()
    facts = Facts(context, world, seen)
    is_fsdp1, sizes_told = is_flat(facts), sizes_are_told(facts)
    causes = [
        NamedCause(
            id=cause.id,
            title=cause.title,
            sentence=sighting.sentence,
            line=sighting.line,
            fix=_fix(cause, facts, sighting)
            or (cause.fix_of_fsdp1 if is_fsdp1 else "")
            or cause.fix,
            share=sighting.share,
            saving=sighting.saving,
            source=cause.source,
            is_wrong=cause.is_wrong,
        )
        for cause in CAUSES
        if all(map(world.evidence.supports, (*_ALWAYS, *cause.needs)))
        and (sizes_told or Figure.CALLS not in cause.needs)
        and (sighting := cause.rule(facts)) is not None
        and _is_worth_naming(cause, sighting)
    ]
    ids = {cause.id for cause in causes}
    causes = [cause for cause in causes if not _EXPLAINED_BY.get(cause.id, set()) & ids]
    return tuple(sorted(causes, key=lambda cause: (not cause.is_wrong, -cause.weight)))


def sizes_are_told(facts: Facts) -> bool:
    """True if the sizes of enough calls in measured steps were recorded.

    Every call of forward and backward must have a size, and so must at least ``_MOST_TOLD`` of all
    calls.
    """
    for position, trace in enumerate(facts.seen.traces):
        if trace.recorded is None or trace.recorded.size.all():
            continue  # computing ``facts.ranks`` would take long
        calls = facts.ranks[position]
        lacks = ~calls.has_size & (calls.step >= 0)
        if (lacks & (calls.in_backward | (calls.phase == Phase.FORWARD))).any():
            return False
        if lacks.any() and calls.has_size[calls.step >= 0].mean() < _MOST_TOLD:
            return False
    return True


def _fix(cause: CatalogueCause, facts: Facts, sighting: Sighting) -> str:
    """Returns an edit of the script, or else the sighting's fix; empty to use the cause's fix."""
    edited = cause.edit(facts, sighting) if cause.edit is not None else ""
    return edited or sighting.fix


def _is_worth_naming(cause: CatalogueCause, sighting: Sighting) -> bool:
    """True if the saving is large enough, or unknown.

    The low end of the saving's interval must reach ``worth``, because a small saving may be chance.
    For a cause that cannot be chance (``is_certain``), the high end must reach ``worth``.
    """
    if sighting.saving is None:
        return True
    saved = sighting.saving.saved
    if cause.is_certain:
        return saved.value > 0 and saved.high >= cause.worth
    return saved.low >= cause.worth


#: Least fraction of the calls that have a recorded size.
_MOST_TOLD = 0.75
_ALWAYS = (Figure.EXPOSED,)
#: For the id of a cause, the ids of causes that explain it. If one of these is named, the cause is
#: left out.
_EXPLAINED_BY = {
    ranks_in_turns.CAUSE.id: {garbage_in_turns.CAUSE.id, compiled_anew.CAUSE.id},
    rank_alone.CAUSE.id: {garbage_in_turns.CAUSE.id, compiled_anew.CAUSE.id},
    workers_restarted.CAUSE.id: {pass_each_step.CAUSE.id},
    own_exchange.CAUSE.id: {tensors_one_by_one.CAUSE.id},
    rank_busier.CAUSE.id: {
        batches_from_one_rank.CAUSE.id,
        rank_alone.CAUSE.id,
        garbage_in_turns.CAUSE.id,
        compiled_anew.CAUSE.id,
    },
    tensors_one_by_one.CAUSE.id: {
        scalars_one_by_one.CAUSE.id,
        zero_one_by_one.CAUSE.id,
        debug_detail.CAUSE.id,
        exchanged_again.CAUSE.id,
    },
}
