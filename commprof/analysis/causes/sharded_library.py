"""Which library shards a job's parameters, FSDP2 or the older FSDP1, and what it calls.

FSDP1 is ``FullyShardedDataParallel``, whose units hold one flat parameter each; FSDP2 is
``fully_shard``. Their collectives are alike, the settings that mend a mistake are not.
"""

from __future__ import annotations

from commprof.analysis.causes.facts import Facts
from commprof.trace.exchanged import trained_by


def is_flat(facts: Facts) -> bool:
    """True if FSDP1 shards the parameters."""
    trained = trained_by(facts.first.trace.metadata)
    return trained is not None and trained.flat


def library(facts: Facts) -> str:
    """Name of the library, as sentences say it."""
    return "FSDP1" if is_flat(facts) else "FSDP2"
