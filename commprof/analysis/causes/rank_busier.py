"""One rank has more work than the others in nearly every step, outside of training's phases."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, at_line
from commprof.analysis.evidence import Figure
from commprof.analysis.late.stragglers import who_waits
from commprof.analysis.named_cause import Saving
from commprof.text import in_ms
from commprof.units import ns_to_ms

#: The rank is late in at least this fraction of the steps.
_MOSTLY = 0.8


def _rule(facts: Facts) -> Sighting | None:
    late = facts.world.lateness.late_rank
    if late is None or late.phase != "other" or late.late_steps < _MOSTLY * late.measured_steps:
        return None
    share = late.wait_ns / facts.step_ns
    if not share >= WORTH_NAMING:
        return None
    who, several = who_waits(late.waiting_ranks, facts.world.world_size)
    lines = [row for row in facts.world.lateness.longer_lines if row.phase == "other"]
    before = at_line(lines[0].end or lines[0].begin) if lines else ""
    return Sighting(
        f"Rank {late.rank} has more work than the others in nearly every step, outside of forward, "
        f"backward and update{before and ', before the line' + before.removeprefix(' at')}. This "
        "may be work that only this rank does, such as a log or the preparation of data. As a "
        f"result, {who} {'wait' if several else 'waits'} {in_ms(ns_to_ms(late.wait_ns))} per step.",
        share,
        _saving(facts, late.rank),
        lines[0].end or lines[0].begin if lines else "",
    )


def _saving(facts: Facts, rank: int) -> Saving | None:
    gains = facts.world.gains
    rows = [row for row in gains.gains if row.rank == rank] if gains is not None else []
    rows = [row for row in rows if row.phase == "other"] or [r for r in rows if r.change == "rank"]
    return Saving(rows[0].saved, "replayed") if rows else None


CAUSE = CatalogueCause(
    id="rank-busier",
    title="One rank logs, draws or prepares data in every step, and the others wait",
    needs=(Figure.SPLIT, Figure.OTHER),
    rule=_rule,
    looks_like=(
        "The report's test for late ranks finds one rank that is late in at least "
        f"{_MOSTLY:.0%} of the steps. This rank loses time outside of loading, forward, "
        "backward and updates. The other ranks wait for this rank for at least "
        f"{WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Some scripts let only rank 0 do extra work in each step, such as histograms and pictures "
        "for a log, a progress bar that reads the loss, or the choice of samples for all ranks. "
        "This work delays every rank, because all ranks wait for rank 0 in the next exchange. Log "
        "only every hundredth step, or from a thread. Let each rank choose its own samples with a "
        "random generator that has the same seed on all ranks."
    ),
    gain_note=(
        "The steps are replayed as if, outside of loading, forward, backward and updates, this "
        "rank had no more work than the other ranks, or, if this was not replayed, as if it did "
        "all of its work as fast as the others."
    ),
    fix=(
        "if YOUR_STEP % 100 == 0:\n"
        "    YOUR_LOG()  # what only this rank does\n"
        "# samples for all ranks: a generator of the same seed on each of them\n"
        "generator = torch.Generator().manual_seed(YOUR_SEED + YOUR_STEP)"
    ),
    source="https://github.com/HorizonRobotics/alf/pull/1717",
)
