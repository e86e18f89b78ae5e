"""Decides whether FSDP should keep gathered parameters, which takes memory."""

from __future__ import annotations

from typing import Final

from commprof.analysis.causes.facts import Facts
from commprof.analysis.named_cause import Saving

#: The gathered models of all ranks together may take at most this fraction of a host's memory.
OF_MEMORY: Final = 0.05
#: Keeping the parameters is advised if this removes waiting of this fraction of the step. It is
#: also advised if it saves this fraction, because FSDP's copies go as well.
LARGE: Final = 0.1
#: In both cases the removed waiting must be at least this fraction of the step.
LEAST_WAITED: Final = 0.05
#: The low end of the saving's interval must be at least this fraction of the step.
LEAST_SAVED: Final = 0.05


def has_memory(facts: Facts, model_bytes: float) -> bool:
    """True if a host has memory for a gathered model of this size on every rank of the job.

    False if the size of the memory was not recorded.
    """
    memory_bytes = int(facts.first.trace.metadata["machine"].get("memory_bytes") or 0)
    return model_bytes * facts.world.world_size <= OF_MEMORY * memory_bytes


def is_worth_memory(waited: float, saving: Saving | None) -> bool:
    """True if the waiting that a fix removes, or the saving by this fix, is large.

    ``waited`` is a fraction of the step.
    """
    if waited >= LARGE:
        return True
    return waited >= LEAST_WAITED and saving is not None and saving.saved.low >= LARGE
