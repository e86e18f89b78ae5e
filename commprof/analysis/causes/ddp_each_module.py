"""Each module is wrapped in a DDP model of its own, so no bucket has gradients of two modules."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.ddp_small_buckets import (
    DEFAULT_BYTES,
    buckets_by_default,
    buckets_of_ddp,
    saving_by_default,
)
from commprof.analysis.causes.facts import Facts, RankCalls
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes

#: Least number of DDP models, and largest mean size of their buckets in bytes.
_LEAST, _MEAN_BYTES = 4, 2**18
#: One backward pass exchanges at least this fraction of the gradients of all models.
_ALL = 0.95
#: Least fraction of the step for which the training thread waits for the buckets.
_EXPOSED = 0.05
#: The cause is named only if the low end of the gain's interval is at least this fraction of the
#: step.
_LOW = 0.01


def _pass_bytes(calls: RankCalls) -> float:
    rows = np.flatnonzero(buckets_of_ddp(calls))
    _, task = np.unique(calls.table.graph_task[rows], return_inverse=True)
    sums = np.bincount(task.reshape(-1), weights=calls.table.bytes_in[rows])
    return float(np.median(sums)) if len(sums) else 0.0


def _rule(facts: Facts) -> Sighting | None:
    caps = facts.logged("bucket_cap_bytes")
    if facts.ddp_models < _LEAST or not caps or min(caps) < DEFAULT_BYTES:
        return None
    first, of_rank = facts.first, len(facts.ddp_logs) // len(facts.ranks)
    total = sum(sum(log.get("parameter_bytes") or ()) for log in facts.ddp_logs[:of_rank])
    if not total or _pass_bytes(first) < _ALL * total:
        return None
    mask = buckets_of_ddp(first)
    if len(np.unique(first.table.group[mask])) > 1:
        # Mixtures of experts have several groups, because only some ranks exchange an expert's
        # gradients. A bucket cannot join gradients of two groups.
        return None
    number, mean = int(mask.sum()) / facts.steps, float(first.size_bytes[mask].mean())
    passes = len(np.unique(first.table.graph_task[mask])) / facts.steps
    usual = buckets_by_default(total)
    if mean > _MEAN_BYTES or number / passes < facts.ddp_models or 2 * usual > number / passes:
        return None
    exposed = [float(calls.exposed_ns[buckets_of_ddp(calls)].sum()) for calls in facts.ranks]
    share = facts.share(exposed)
    if share < _EXPOSED:
        return None
    return Sighting(
        f"{facts.ddp_models} modules are DDP models of their own, but one pass exchanges the "
        f"gradients of all modules, in {counted(round(number / passes), 'bucket')} of "
        f"{in_bytes(mean)} on average. Each bucket pays the latency of a call. One DDP model of "
        f"all modules would make {counted(usual, 'bucket')}.",
        share,
        saving_by_default(facts),
    )


CAUSE = CatalogueCause(
    id="ddp-each-module",
    title="Each module of a model is a DDP model of its own",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"One backward pass exchanges the gradients of at least {_LEAST} DDP models of one group "
        "of ranks. The `bucket_cap_mb` of these models is at least the default. The buckets have "
        f"at most {_MEAN_BYTES // 2**10} KiB on average, and one DDP model would make at most half "
        "as many buckets. The training thread waits for the buckets for at least "
        f"{_EXPOSED:.0%} of the step."
    ),
    why=(
        "A bucket joins gradients of one DDP model only. If each layer, or each part of a model, "
        "has a wrapper of its own, every wrapper makes a small bucket, and every bucket pays "
        "the latency of an all-reduce. Each wrapper also searches for unused parameters and "
        "broadcasts buffers by itself. Models that have passes of their own, as in a GAN, do not "
        "count."
    ),
    gain_note=(
        "The steps are replayed with buckets of the default size. The time of such buckets is "
        "computed from the times and bytes of this run's buckets. The gain is not predicted if all "
        "buckets have nearly the same size, or if the buckets' times vary too much, because "
        "latency and transfer then cannot be separated. Each DDP model also takes about 40 us in "
        "forward and backward. This time is not recorded, so the fix wins somewhat more."
    ),
    fix=(
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        "# wrap the whole model once, and no module by itself: a module with a wrapper\n"
        "# of its own would exchange its gradients a second time\n"
        "model = DistributedDataParallel(YOUR_MODEL)"
    ),
    worth=_LOW,
    source="https://github.com/speechbrain/speechbrain/issues/1162",
)
