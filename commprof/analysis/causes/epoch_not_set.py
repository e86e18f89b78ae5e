"""A DistributedSampler gives the same order in every epoch, because its epoch is never set."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.data_passes import DataPasses, data_passes
from commprof.analysis.causes.edits.script import Script
from commprof.analysis.causes.facts import Facts

#: Least number of training passes in the same order.
_LEAST = 3


def _repeated(passes: DataPasses) -> tuple[int, int]:
    """Returns the number of passes with the most frequent order, and the number of all passes.

    Only shuffled training passes count. Two passes have the same order if their seed and epoch are
    equal, and if their sampler or their first batches are equal. A script may make a new sampler in
    each epoch.
    """
    shuffled = passes.training
    shuffled = shuffled.chosen(np.flatnonzero(shuffled.epoch > 0))
    compared = shuffled.chosen(np.flatnonzero(shuffled.contents > 0))
    most = 0
    for with_key, keys in ((shuffled, shuffled.sampler), (compared, compared.checksum)):
        orders = np.stack([keys, with_key.seed, with_key.epoch], axis=1)
        counts = np.unique(orders, axis=0, return_counts=True)[1] if len(orders) else np.zeros(0)
        most = max(most, int(counts.max(initial=0)))
    return most, len(shuffled.epoch)


def _rule(facts: Facts) -> Sighting | None:
    number, of_all = min(map(_repeated, data_passes(facts)), default=(0, 0))
    # Some scripts repeat an order on purpose, for example to train several times on new samples.
    if number < _LEAST or 2 * number <= of_all:
        return None
    passes = f"{number} passes" if number == of_all else f"{number} of {of_all} shuffled passes"
    return Sighting(
        f"A DistributedSampler used the same order of samples in {passes} over the data. With "
        "shuffle=True, the order depends only on the sampler's seed and epoch, and both stayed the "
        "same. Each rank also got the same part of the samples every time."
    )


def _edit(script: Script) -> str:
    site = script.only("DistributedSampler")
    if site is None or site.loop is not None or not site.target:
        return ""
    loops = [
        place.loop
        for place in script.places("backward")
        if place.source is site.source and place.loop is not None
    ]
    source = site.source
    outer = [
        node
        for inner in loops
        for node in source.around(inner)
        if _is_range_loop(source.segment(node).lstrip()) and node is not inner
    ]
    if len({id(node) for node in outer}) != 1:
        return ""
    (loop, *_) = outer
    epoch = source.segment(loop.target)  # type: ignore[attr-defined]
    first = loop.body[0]  # type: ignore[attr-defined]
    return source.before(first, f"{site.target}.set_epoch({epoch})")


def _is_range_loop(text: str) -> bool:
    head = text.splitlines()[0] if text else ""
    return head.startswith("for ") and "range(" in head and "," not in head.partition(" in ")[0]


CAUSE = CatalogueCause(
    id="epoch-not-set",
    title="Every epoch has the same order, because the sampler's epoch is not set",
    needs=(),
    rule=_rule,
    looks_like=(
        "Each rank makes training passes over the data with `DistributedSampler(shuffle=True)`. In "
        f"more than half of these passes, and in at least {_LEAST}, the sampler has the same seed "
        "and epoch. These passes also share one sampler, or their first batches are equal. "
        "Subclasses of DistributedSampler with their own order do not count."
    ),
    why=(
        "`DistributedSampler(shuffle=True)` computes the order of the samples from its seed and "
        "its epoch. Only `set_epoch` changes this epoch. A script that never calls `set_epoch` "
        "uses the same order in every epoch, and gives each rank the same samples every time. This "
        "costs no time, but the model learns less from each epoch."
    ),
    gain_note="Not predicted, because no step becomes shorter.",
    fix=(
        "for epoch in range(YOUR_EPOCHS):\n"
        "    YOUR_SAMPLER.set_epoch(epoch)\n"
        "    for batch in YOUR_LOADER:\n"
        "        YOUR_STEP(YOUR_MODEL, batch)"
    ),
    edit=lambda facts, _: _edit(facts.script),
    source="https://github.com/Spijkervet/SimCLR/pull/26",
)
