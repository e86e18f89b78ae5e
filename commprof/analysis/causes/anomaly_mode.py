"""Autograd's anomaly detection, a setting for debugging, is left on."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.script import Site
from commprof.analysis.causes.facts import Facts
from commprof.analysis.evidence import Figure
from commprof.trace.lookup import row_containing

_NOTED = "anomaly_backwards"
#: The cause is named if a backward pass runs in this mode in at least this fraction of the steps.
_USUAL = 0.9
_SETTER = "set_detect_anomaly"


def _rule(facts: Facts) -> Sighting | None:
    ranks = []
    for position in range(len(facts.ranks)):
        begin, _ = facts.noted_ns(position, _NOTED)
        if not len(begin):
            continue  # the usual case; reading the rank's calls would take long
        calls = facts.ranks[position]
        steps = np.unique(row_containing(calls.begin_ns, calls.end_ns, begin))
        if len(steps) >= _USUAL * min(facts.steps, _MOST_NOTED):
            ranks.append(calls.rank)
    if not ranks:
        return None
    everyone = len(facts.ranks)
    some = "" if len(ranks) == everyone else f", on {len(ranks)} of {everyone} ranks only"
    setter = _setter(facts)
    where = f", set at {setter.source.path.name}:{setter.call.lineno}," if setter else ""
    return Sighting(
        f"Autograd's anomaly detection{where} is left on{some}: in each forward pass in this "
        "mode, torch keeps the Python stack of every operator. In each backward pass, it looks for "
        "NaN in every gradient, unless check_nan=False says otherwise. With both, compute often "
        "takes several times as long."
    )


#: Capture records at most this many passes.
_MOST_NOTED = 4096


def _setter(facts: Facts) -> Site | None:
    sites = [
        site
        for site in facts.script.places(_SETTER)
        if [site.source.segment(argument) for argument in site.call.args] != ["False"]
    ]
    return sites[0] if len(sites) == 1 else None


def _edit(facts: Facts) -> str:
    site = _setter(facts)
    return site.source.deleted([site.statement]) if site is not None and site.is_whole else ""


CAUSE = CatalogueCause(
    id="anomaly-mode",
    title="Autograd's anomaly detection is left on",
    needs=(Figure.PARTS,),
    rule=_rule,
    looks_like=(
        f"In at least {_USUAL:.0%} of the measured steps of a rank, a backward pass runs while "
        "torch.is_anomaly_enabled() is True. Recordings of other tools do not show this."
    ),
    why=(
        "`torch.autograd.set_detect_anomaly(True)`, `detect_anomaly()` and Lightning's "
        "`Trainer(detect_anomaly=True)` find the operator whose gradient is NaN. In this mode, "
        "torch records the Python stack of each operator in forward, and checks each gradient in "
        "backward, unless the mode was set with `check_nan=False`. If only one rank has the mode "
        "on, all other ranks wait for this rank. Switch the mode off once the NaN is found."
    ),
    gain_note=(
        "Not predicted, because a run with the mode on does not show how long forward and "
        "backward take without it."
    ),
    fix=(
        "torch.autograd.set_detect_anomaly(False)  # Trainer(detect_anomaly=False)\n"
        "# and delete: with torch.autograd.detect_anomaly():"
    ),
    edit=lambda facts, _: _edit(facts),
    source="https://github.com/Lightning-AI/pytorch-lightning/issues/12344",
)
