"""The ranks' batches take unequal work; the rank with the most work changes from step to step."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Floats
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import Saving
from commprof.text import in_ms
from commprof.trace.schema import PHASES
from commprof.units import ns_to_ms

#: Least number of replayed steps.
_STEPS = 8
#: The rank with the most compute must exceed the mean rank by at least this fraction of the step.
_SPREAD = 0.05
#: Least standard deviation of a typical rank's compute over the steps, as a fraction of its mean.
#: Compute of equal batches varies less. Run delay by helper threads is not counted.
_VARIES = 0.3
#: Least correlation of a rank's excess over the mean rank in forward and its excess in backward. A
#: larger batch lengthens both, but a disturbance lengthens only one.
_TOGETHER = 0.8
#: Largest fraction of the steps in which the same rank computes the longest.
_ONE_RANK = 0.8
_COMPUTE = (PHASES.index("forward"), PHASES.index("backward"))


def _rule(facts: Facts) -> Sighting | None:
    if facts.world.lateness.late_rank is not None or len(facts.ranks) < 2:
        return None
    recorded = facts.replays
    if recorded is None or facts.on_device:
        return None
    # ``forward`` and ``backward`` are [rank, step]. Run delay by helper threads is not compute.
    run_delay = recorded.kept_ns[:, recorded.counted]
    forward, backward = (
        recorded.own_ns[:, recorded.counted, phase] - run_delay[:, :, phase] for phase in _COMPUTE
    )
    compute = forward + backward
    if compute.shape[1] < _STEPS or not compute.min() > 0:
        return None
    varies = np.median(compute.std(axis=1) / compute.mean(axis=1))
    longest = np.bincount(compute.argmax(axis=0), minlength=len(compute)) / compute.shape[1]
    beyond_ns = float((compute.max(axis=0) - compute.mean(axis=0)).mean())
    share = beyond_ns / facts.step_ns
    if varies < _VARIES or longest.max() > _ONE_RANK or share < _SPREAD:
        return None
    if _correlation(_beyond_mean(forward), _beyond_mean(backward)) < _TOGETHER:
        return None
    return Sighting(
        "The ranks' batches take unequal work. In each step, forward and backward of the slowest "
        f"rank take {in_ms(ns_to_ms(beyond_ns))} longer than the average of the ranks, and the "
        "other ranks wait. The slowest rank changes from step to step. Batches of uneven length "
        "have this effect.",
        share,
        _saving(facts),
    )


def _beyond_mean(work_ns: Floats) -> Floats:
    beyond: Floats = work_ns - work_ns.mean(axis=0)
    return beyond - beyond.mean(axis=1, keepdims=True)


def _correlation(a: Floats, b: Floats) -> float:
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm > 0 else 0.0


def _saving(facts: Facts) -> Saving | None:
    recorded = facts.replays
    base = None if recorded is None else recorded.step_ns()
    if recorded is None or base is None:
        return None
    equal = recorded.own_ns.copy()
    for phase in _COMPUTE:
        equal[:, :, phase] = equal[:, :, phase].mean(axis=0)
    changed = recorded.step_ns(equal)
    return None if changed is None else Saving(recorded.saved(base, changed), "replayed")


CAUSE = CatalogueCause(
    id="uneven-batches",
    title="The ranks' batches take unequal work",
    needs=(Figure.SPLIT, Figure.PARTS),
    rule=_rule,
    looks_like=(
        "The report's test for late ranks finds no late rank. The compute of a typical rank "
        f"varies by at least {_VARIES:.0%} from step to step, and forward and backward vary "
        f"together (correlation at least {_TOGETHER:g}). The rank that computes the longest "
        f"exceeds the average of the ranks by at least {_SPREAD:.0%} of the step. No rank computes "
        f"the longest in more than {_ONE_RANK:.0%} of the steps. The cause is not named for jobs "
        "on GPUs."
    ),
    why=(
        "Every step takes as long as the rank with the most work, and all other ranks wait for "
        "this rank. If samples differ in length, the longest batch of all ranks determines the "
        "length of the step. Sort the samples by length and deal them out to the ranks in turn, so "
        "that all ranks have samples of about the same length in a step. Then shuffle the steps, "
        "not the samples."
    ),
    gain_note=(
        "The steps are replayed with the ranks' average forward and backward times on every rank."
    ),
    fix=(
        "rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()\n"
        "lengths = [len(sample[0]) for sample in YOUR_DATA]\n"
        "order = sorted(range(len(lengths)), key=lengths.__getitem__)\n"
        "mine = order[rank : len(order) // ranks * ranks : ranks]  # dealt out in turn\n"
        "batches = list(torch.tensor(mine).split(YOUR_BATCH_SIZE))\n"
        "# in each epoch: random.Random(epoch).shuffle(batches), then a new\n"
        "# DataLoader(YOUR_DATA, batch_sampler=batches)"
    ),
    source="https://github.com/lightseekorg/TorchSpec/issues/13",
)
