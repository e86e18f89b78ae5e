"""DDP's buckets are so large that nearly all gradients are sent when backward is over."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.ddp_small_buckets import DEFAULT_BYTES, buckets_of_ddp
from commprof.analysis.causes.edits.model_settings import DDP, with_settings
from commprof.analysis.causes.facts import Facts, RankCalls
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms

#: One bucket must hold at least this fraction of the gradients, and be at least this many times as
#: large as the default cap.
_NEARLY_ALL, _LEAST_BUCKETS = 0.8, 1.5
#: The training thread must wait for this bucket for at least this fraction of the step.
_EXPOSED = 0.1


def _largest(calls: RankCalls) -> tuple[float, float]:
    mask = buckets_of_ddp(calls)
    if not mask.any():
        return 0.0, 0.0
    _, task = np.unique(calls.table.graph_task[mask], return_inverse=True)
    sizes = calls.size_bytes[mask].astype(np.float64)
    largest, total = np.zeros(int(task.max()) + 1), np.bincount(task, sizes)
    np.maximum.at(largest, task, sizes)
    return float(np.median(largest)), float(np.median(largest / total))


def _rule(facts: Facts) -> Sighting | None:
    caps = facts.logged("bucket_cap_bytes")
    parameters = [int(n) for log in facts.ddp_logs for n in log.get("parameter_bytes", ())]
    if not caps or min(caps) <= DEFAULT_BYTES or not parameters:
        return None
    size, fraction = _largest(facts.first)
    if size < _LEAST_BUCKETS * DEFAULT_BYTES or fraction < _NEARLY_ALL:
        return None
    if max(parameters) >= 0.5 * size:
        return None  # a smaller cap would not help, because a parameter is not divided
    exposed = []
    for position, calls in enumerate(facts.ranks):
        mask = buckets_of_ddp(calls)
        large = mask & (calls.size_bytes >= _NEARLY_ALL * size)
        exposed.append(facts.transferring_ns(position, large))
    share = facts.share(exposed)
    if not share >= _EXPOSED:
        return None
    ms = facts.per_step_ms(exposed)
    return Sighting(
        f"DDP sends {fraction:.0%} of the gradients in one bucket of {in_bytes(size)} "
        f"(bucket_cap_mb={min(caps) / 2**20:.3g}). This bucket is full only when backward is over, "
        f"so no compute hides its exchange, and training waits {in_ms(ms)} per step. The default "
        f"of 25 MiB would make {round(size / DEFAULT_BYTES)} buckets, sent during backward.",
        share,
    )


CAUSE = CatalogueCause(
    id="ddp-one-bucket",
    title="DDP's buckets are so large that nothing hides their exchange",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "`bucket_cap_mb` is above its default. One bucket of a pass holds at least "
        f"{_NEARLY_ALL:.0%} of the gradients, and is at least {_LEAST_BUCKETS} times as large as "
        "the default of 25 MiB. No parameter has half of the bucket's bytes. The training "
        "thread waits for the transfer of this bucket for at least "
        f"{_EXPOSED:.0%} of the step."
    ),
    why=(
        "A bucket is sent when its last gradient is ready. If one bucket holds nearly all "
        "gradients, it is ready when backward is over, and nothing is computed while it is sent. "
        "Large buckets spare latency, but on most networks a bucket of 25 MiB already takes much "
        "longer to transfer than to start."
    ),
    gain_note=(
        "Not predicted, because it is not recorded when each gradient in the bucket was ready. The "
        "fix wins at most the time for which training waits for the bucket's transfer. It wins "
        "less on hosts whose cores also carry out the exchange."
    ),
    fix=(
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        "model = DistributedDataParallel(YOUR_MODEL, bucket_cap_mb=25)"
    ),
    edit=lambda facts, _: with_settings(facts.script, DDP, bucket_cap_mb=25),
    source="https://github.com/pytorch/pytorch/issues/48880",
)
