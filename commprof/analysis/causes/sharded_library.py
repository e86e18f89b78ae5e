"""Finds out whether FSDP1 or FSDP2 shards the parameters of a job.

FSDP1 is ``FullyShardedDataParallel``, and FSDP2 is ``fully_shard``. Both make the same collectives,
but need different fixes.
"""

from __future__ import annotations

from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.collectives.sharding import Sharding, gathers
from commprof.trace.exchanged import trained_by


def fsdp_of(facts: Facts) -> Sharding | None:
    """Returns the collectives of FSDP; None if there are none.

    Collectives of other libraries that shard parameters do not count.
    """
    trained = trained_by(facts.first.trace.metadata)
    is_other = trained is not None and not trained.sharded
    return None if is_other else facts.world.communication.sharding


def is_flat(facts: Facts) -> bool:
    """True if FSDP1 is known to shard the parameters."""
    return _flat(facts) is True


def library(facts: Facts) -> str:
    """Returns "FSDP1" or "FSDP2" for a sentence; "FSDP" if the version is not known."""
    return {True: "FSDP1", False: "FSDP2", None: "FSDP"}[_flat(facts)]


def _flat(facts: Facts) -> bool | None:
    trained = trained_by(facts.first.trace.metadata)
    return None if trained is None else trained.flat


def unit_gathers(calls: RankCalls) -> Mask:
    """Returns a mask of FSDP's all-gathers of parameters in measured steps."""
    return gathers(calls.trace, calls.table, int(calls.begin_ns[0])) & (calls.step >= 0)
