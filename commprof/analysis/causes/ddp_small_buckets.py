"""DDP's buckets are so small that their time is mostly latency."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.ddp_every_pass import exchanging_ns
from commprof.analysis.causes.edits.model_settings import DDP, with_settings
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.joined_calls import call_cost
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import Saving
from commprof.text import counted, in_bytes
from commprof.trace import columns
from commprof.trace.columns import Ints

#: DDP's default of ``bucket_cap_mb``, in bytes.
DEFAULT_BYTES = 25 * 2**20
#: Cap of the first bucket of a pass.
_FIRST_BYTES = 2**20
#: Least number of buckets in a pass, and largest mean size of these buckets in bytes.
_LEAST, _MEAN_BYTES = 8, 2**18
#: The training thread must wait for the buckets for at least this fraction of the step.
_EXPOSED = 0.05
#: The cause is named only if the low end of the gain's interval is at least this fraction of the
#: step. The fraction is small, because the script itself sets the cap.
_LOW = 0.01


def buckets_of_ddp(calls: RankCalls) -> Mask:
    """Mask over the table: collectives of DDP's backward passes in measured steps."""
    of_ddp = np.isin(calls.table.graph_task, columns.finalizations(calls.trace).span.key)
    mask: Mask = of_ddp & (calls.step >= 0)
    return mask


def _rule(facts: Facts) -> Sighting | None:
    caps = facts.logged("bucket_cap_bytes")
    if not caps or min(caps) >= DEFAULT_BYTES:
        return None
    mask, first = buckets_of_ddp(facts.first), facts.first
    passes = facts.passes(exchanging_ns, once_each=True)
    if not mask.any() or passes is None or not passes.exchanged:
        return None
    number = int(mask.sum()) / facts.steps
    mean = float(first.size_bytes[mask].mean())
    if number / passes.exchanged < _LEAST or mean > _MEAN_BYTES:
        return None
    exposed = [float(calls.exposed_ns[buckets_of_ddp(calls)].sum()) for calls in facts.ranks]
    share = facts.share(exposed)
    if share < _EXPOSED:
        return None
    of_pass = buckets_by_default(mean * number / passes.exchanged)
    usual = counted(passes.exchanged * of_pass, "bucket")
    cap = f"bucket_cap_mb={min(caps) / 2**20:.3g}"
    return Sighting(
        f"DDP cuts the gradients into {counted(round(number), 'bucket')} per step "
        f"({in_bytes(mean)} on average, {cap}). Each bucket pays the latency of a call. "
        f"The default of 25 MiB would make {usual}.",
        share,
        saving_by_default(facts),
    )


def saving_by_default(facts: Facts) -> Saving | None:
    """Returns the saving by buckets of the default size; None if their cost is not known."""
    masks = [buckets_of_ddp(calls) for calls in facts.ranks]
    cost = call_cost(facts, masks)
    if cost is None:
        return None
    removed, transfer_ns = [], []
    for calls, mask in zip(facts.ranks, masks, strict=True):
        remaining, size_bytes = _joined(calls, mask)
        gone = mask.copy()
        gone[remaining] = False
        removed.append(Removed.only(gone, bytes_remain=True))
        changed = np.full(len(mask), np.nan)
        changed[remaining] = cost.of_ns(size_bytes)
        transfer_ns.append(changed)
    return saving_without(facts, removed, transfer_ns)


def _joined(calls: RankCalls, mask: Mask) -> tuple[Ints, Ints]:
    """Per bucket of the default size: row of the last call that it joins, and the bucket's bytes.

    DDP closes a bucket once it holds the cap. The first bucket of a pass has a smaller cap.
    """
    rows: list[int] = []
    sizes: list[int] = []
    task, held, cap = -1, 0, _FIRST_BYTES
    order = np.flatnonzero(mask)
    order = order[np.lexsort((calls.table.issue_ns[order], calls.table.graph_task[order]))]
    for row in order.tolist():
        if calls.table.graph_task[row] != task:
            task, held, cap = int(calls.table.graph_task[row]), 0, _FIRST_BYTES
        elif held >= cap:
            held, cap = 0, DEFAULT_BYTES
        if held:
            rows[-1], sizes[-1] = row, held + int(calls.size_bytes[row])
        else:
            rows.append(row)
            sizes.append(int(calls.size_bytes[row]))
        held = sizes[-1]
    return np.array(rows, dtype=np.int64), np.array(sizes, dtype=np.int64)


def buckets_by_default(size_bytes: float) -> int:
    """Number of buckets with the default caps: 1 MiB for the first bucket, then 25 MiB."""
    return 1 + int(np.ceil(max(0.0, size_bytes - _FIRST_BYTES) / DEFAULT_BYTES))


CAUSE = CatalogueCause(
    id="ddp-small-buckets",
    title="DDP's buckets are so small that their time is mostly latency",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "`bucket_cap_mb` is below its default. A pass has at least "
        f"{_LEAST} buckets, of at most {_MEAN_BYTES // 2**10} KiB on average. The training thread "
        f"waits for the buckets for at least {_EXPOSED:.0%} of the step."
    ),
    why=(
        "Every bucket is one all-reduce, and even a tiny all-reduce takes its latency. Small "
        "buckets begin earlier, but this helps only if each bucket takes longer to transfer than "
        "to start. The default of 25 MiB, with a first bucket of 1 MiB, suits most models."
    ),
    gain_note=(
        "The steps are replayed with buckets of the default size. The time of such buckets is "
        "computed from the times and bytes of this run's buckets. The gain is not predicted if all "
        "buckets have nearly the same size, or if the buckets' times vary too much, because "
        "latency and transfer then cannot be separated."
    ),
    fix=(
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        "model = DistributedDataParallel(YOUR_MODEL, bucket_cap_mb=25)"
    ),
    edit=lambda facts, _: with_settings(facts.script, DDP, bucket_cap_mb=25),
    worth=_LOW,
    source="https://github.com/pytorch/pytorch/issues/48880",
)
