"""torch.compile compiles the model again and again, for inputs of new shapes."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import (
    FEW_STEPS,
    WORTH_NAMING,
    CatalogueCause,
    Sighting,
)
from commprof.analysis.causes.edits.script import Script
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms, named_ranks
from commprof.trace.lookup import row_containing
from commprof.trace.stretches import Stretches, stretches
from commprof.units import ns_to_ms

#: A rank must compile in at least ``_LEAST`` measured steps, of which ``_LATE`` are in the second
#: half. A job that compiles in its first steps, and once for an evaluation, is healthy.
_LEAST, _LATE = 3, 2


def _share_from(facts: Facts, spans: list[Stretches], first: int) -> float:
    compiling = length = 0
    for calls, compiled in zip(facts.ranks, spans, strict=True):
        compiling += int(compiled.length_ns[compiled.begin_ns >= calls.begin_ns[first]].sum())
        length += int((calls.end_ns - calls.begin_ns)[first:].sum())
    return compiling / length


def _rule(facts: Facts) -> Sighting | None:
    noted = [facts.noted_ns(position, "compilations") for position in range(len(facts.ranks))]
    if max(len(begin) for begin, _ in noted) < _LEAST:
        return None
    spans = [stretches(*of_rank) for of_rank in noted]  # compilations can overlap
    steps = [
        np.unique(row_containing(calls.begin_ns, calls.end_ns, compiled.begin_ns))
        for calls, compiled in zip(facts.ranks, spans, strict=True)
    ]
    half = facts.steps // 2
    lasts = [len(rows) >= _LEAST and (rows >= half).sum() >= _LATE for rows in steps]
    share = facts.share([float(compiled.length_ns.sum()) for compiled in spans])
    late_share = _share_from(facts, spans, half)
    if not any(lasts) or not min(share, late_share) >= WORTH_NAMING:
        return None
    removed = [
        Removed(np.zeros(len(calls.table), dtype=bool), compiled.begin_ns, compiled.end_ns)
        for calls, compiled in zip(facts.ranks, spans, strict=True)
    ]
    number = sum(map(len, steps))
    mean_ms = ns_to_ms(share * len(spans) * facts.steps * facts.step_ns / number)
    ranks = [rank for rank, late in zip(facts.seen.ranks, lasts, strict=True) if late]
    together = len(np.unique(np.concatenate(steps)))
    waits = "; ranks that do not compile wait" * (together > max(map(len, steps)))
    return Sighting(
        f"torch.compile compiles anew in {together} of {facts.steps} steps, for {in_ms(mean_ms)} "
        f"each time, on {named_ranks(ranks)}{waits}. Inputs whose shapes keep changing "
        "cause this.",
        share,
        saving_without(facts, removed),
    )


def _edit(script: Script) -> str:
    sites = [
        site
        for site in script.places("compile")
        if site.source.segment(site.call.func) == "torch.compile"
    ]
    if len(sites) != 1 or not sites[0].can_be_written:
        return ""
    if "True" in sites[0].values("dynamic"):
        return ""
    return sites[0].source.with_settings(sites[0].call, {"dynamic": True})


CAUSE = CatalogueCause(
    id="compiled-anew",
    title="torch.compile compiles again and again, for inputs of new shapes",
    needs=(Figure.EXPOSED,),
    rule=_rule,
    looks_like=(
        f"A rank compiles in at least {_LEAST} measured steps, at least {_LATE} of them in the "
        f"second half of the steps. Compiling takes at least {WORTH_NAMING:.0%} of the ranks' time "
        "on average, both in all measured steps and in the second half. The times come from "
        "torch's own list of compilations, which holds the last 64 compilations."
    ),
    why=(
        "If shapes are static, torch compiles a model again for each new shape of its inputs. New "
        "shapes come in different steps on different ranks. While one rank compiles, all other "
        "ranks wait in the next exchange, so the times of all compilations add up. A long "
        "compilation may end in a time-out. With `dynamic=True` one compilation serves all "
        "lengths. It also helps to round the lengths up to a few values."
    ),
    fix=(
        "model = torch.compile(YOUR_MODEL, dynamic=True)\n"
        "# or pad each batch to a multiple of 256, so that few lengths are left"
    ),
    edit=lambda facts, _: _edit(facts.script),
    source="https://github.com/pytorch/pytorch/issues/174704",
    worth=FEW_STEPS,
)
