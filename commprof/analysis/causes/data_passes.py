"""Lists the ranks' passes over DataLoaders, and finds the passes that train."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from commprof.analysis.align.alike_ranks import sizes_of_groups
from commprof.analysis.causes.facts import Facts, RankCalls, once
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.schema import Phase

#: Operations by which ranks divide the work on a batch, as parts of a sequence or of a model.
_DIVIDING = ("send", "recv", "recv_any_source", "all_to_all", "all_to_all_single")
#: Operations that may be in forward passes of ranks that do not divide a batch.
_OF_FORWARD = ("broadcast", "barrier", "monitored_barrier")


@dataclass(frozen=True)
class DataPasses:
    """Passes of one rank over DataLoaders, sorted by their begins."""

    begin_ns: Ints
    end_ns: Ints
    #: Number of the DistributedSampler, the sampler's epoch plus 1, and a checksum of its seed. All
    #: three are 0 if no DistributedSampler shuffles by its epoch.
    sampler: Ints
    epoch: Ints
    seed: Ints
    batches: Ints
    #: Checksum of the first batches, and number of different contents among these batches. Both are
    #: 0 if a part of these batches was not compared.
    checksum: Ints
    contents: Ints
    #: Number of batches of a whole pass; 0 if it is not known.
    length: Ints
    #: Number of forward passes, and number of backward passes, that began during the pass.
    forward: Ints
    backward: Ints

    def chosen(self, rows: Ints) -> DataPasses:
        """Returns only the passes in these rows."""
        return replace(self, **{name: values[rows] for name, values in vars(self).items()})

    @property
    def training(self) -> DataPasses:
        """The passes that train: at least two backward passes, at least one per four batches."""
        is_training = (self.backward >= 2) & (self.backward * _MOST_MICRO >= self.batches)
        return self.chosen(np.flatnonzero(is_training))

    @property
    def evaluating(self) -> DataPasses:
        """The passes with a forward pass on most batches, and without backward passes.

        Without forward passes, the script may only load data to train on later.
        """
        has_forward = 2 * self.forward > self.batches
        return self.chosen(np.flatnonzero(has_forward & (self.backward == 0)))


#: In training, a pass has at most this many batches per backward pass.
_MOST_MICRO = 4


@once
def data_passes(facts: Facts) -> list[DataPasses]:
    """Returns the passes of each rank; empty if a rank's passes were not recorded."""
    of_ranks = []
    for position, trace in enumerate(facts.seen.traces):
        noted = trace.metadata.get("data_passes") or {}
        if not noted.get("begin_ns"):
            return []
        read = {name: np.array(values, dtype=np.int64) for name, values in noted.items()}
        # traces of earlier versions have no lengths
        read.setdefault("length", np.zeros_like(read["begin_ns"]))
        shift = facts.clock_shift_ns(position)
        read |= {name: read[name] + shift for name in ("begin_ns", "end_ns")}
        phases = columns.phases(trace)
        counts = {}
        for name, phase in (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD)):
            begun = np.sort(phases.begin_ns[phases.key == phase])
            first, last = (np.searchsorted(begun, read[edge]) for edge in ("begin_ns", "end_ns"))
            counts[name] = (last - first).astype(np.int64)
        passes = DataPasses(**read, **counts)
        of_ranks.append(passes.chosen(np.argsort(read["begin_ns"], kind="stable")))
    return of_ranks


def is_data_parallel(facts: Facts) -> bool:
    """True if DDP exchanges gradients of all ranks, and no calls divide a batch among ranks.

    Ranks that divide a model, or the sequences of a batch, need the same batches.
    """
    return bool(facts.ddp_models) and all(_is_data_parallel(calls) for calls in facts.ranks)


def _is_data_parallel(calls: RankCalls) -> bool:
    in_forward = (calls.step >= 0) & (calls.phase == Phase.FORWARD)
    if (in_forward & ~calls.measured(_OF_FORWARD)).any() or calls.measured(_DIVIDING).any():
        return False
    sizes = sizes_of_groups([calls.trace], [calls.table])[calls.in_backward & (calls.step >= 0)]
    return bool(len(sizes)) and bool((sizes == calls.trace.metadata["world_size"]).all())
