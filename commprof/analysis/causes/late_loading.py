"""Loading data makes one rank late."""

from __future__ import annotations

import ast

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.evidence import Figure
from commprof.analysis.late.stragglers import who_waits
from commprof.analysis.named_cause import Saving
from commprof.text import in_ms
from commprof.units import ns_to_ms


def _rule(facts: Facts) -> Sighting | None:
    late = facts.world.lateness.late_rank
    if late is None or late.phase != "data":
        return None
    share = late.wait_ns / facts.step_ns
    if share < WORTH_NAMING:
        return None
    who, several = who_waits(late.waiting_ranks, facts.world.world_size)
    return Sighting(
        f"Rank {late.rank} loads its batches more slowly than the others: {who} "
        f"{'wait' if several else 'waits'} {in_ms(ns_to_ms(late.wait_ns))} per step for it.",
        share,
        _saving(facts, late.rank),
    )


def _saving(facts: Facts, rank: int) -> Saving | None:
    gains = facts.world.gains
    rows = [row for row in gains.gains if row.rank == rank] if gains is not None else []
    rows = [row for row in rows if row.phase == "data"] or [r for r in rows if r.change == "rank"]
    return Saving(rows[0].saved, "replayed") if rows else None


def _edit(facts: Facts) -> str:
    site = facts.script.only("DataLoader")
    given = [] if site is None else [k.value for k in site.call.keywords if k.arg == "num_workers"]
    if site is None or any(not isinstance(v, ast.Constant) or v.value for v in given):
        return ""
    workers = {"num_workers": 4, "persistent_workers": True, "prefetch_factor": 4}
    return site.source.with_settings(site.call, workers)


CAUSE = CatalogueCause(
    id="late-loading",
    title="Loading data makes one rank late",
    needs=(Figure.LATE,),
    rule=_rule,
    looks_like=(
        "The report's test for late ranks finds a late rank. This rank loses time while it loads "
        f"data, and the other ranks wait for it for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "If one rank reads from a slower disk, has fewer cores for its loaders or gets larger "
        "samples, all other ranks wait for this rank in every step. Workers can load the next "
        "batch during a step. If this is not enough, look at the rank's disk and at the length of "
        "its samples."
    ),
    gain_note=(
        "The steps are replayed as if this rank loaded data as fast as the others, or, if this "
        "was not replayed, as if it did all of its work as fast as the others. Workers that "
        "load the next batch in advance also save loading time on the other ranks."
    ),
    fix=(
        'options = {"num_workers": 4, "persistent_workers": True, "prefetch_factor": 4}\n'
        "# with your own sampler, so that each rank keeps its part of the data:\n"
        "sampler = torch.utils.data.distributed.DistributedSampler(YOUR_DATA)\n"
        'options |= {"batch_size": YOUR_BATCH_SIZE, "sampler": sampler}\n'
        "loader = torch.utils.data.DataLoader(YOUR_DATA, **options)"
    ),
    edit=lambda facts, _: _edit(facts),
    source="https://github.com/pytorch/pytorch/issues/31590",
)
