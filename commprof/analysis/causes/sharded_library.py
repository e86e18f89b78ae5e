"""Which library shards a job's parameters, FSDP2 or the older FSDP1, and which calls gather them.

FSDP1 is ``FullyShardedDataParallel``, whose units hold one flat parameter each; FSDP2 is
``fully_shard``. Their collectives are alike; the settings that correct a mistake differ.
"""

from __future__ import annotations

from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.collectives.sharding import Sharding, gathers
from commprof.trace.exchanged import trained_by


def fsdp_of(facts: Facts) -> Sharding | None:
    """The collectives of FSDP; None if there are none.

    Other libraries and scripts that shard parameters themselves make the same collectives, but the
    parameters that they train are no shards of torch's.
    """
    trained = trained_by(facts.first.trace.metadata)
    is_other = trained is not None and not trained.sharded
    return None if is_other else facts.world.communication.sharding


def is_flat(facts: Facts) -> bool:
    """True if FSDP1 is known to shard the parameters."""
    return _flat(facts) is True


def library(facts: Facts) -> str:
    """Name of the library for use in sentences; "FSDP" if its version is not known."""
    return {True: "FSDP1", False: "FSDP2", None: "FSDP"}[_flat(facts)]


def _flat(facts: Facts) -> bool | None:
    trained = trained_by(facts.first.trace.metadata)
    return None if trained is None else trained.flat


def unit_gathers(calls: RankCalls) -> Mask:
    """The all-gathers of parameters in the measured steps."""
    return gathers(calls.trace, calls.table, int(calls.begin_ns[0])) & (calls.step >= 0)
