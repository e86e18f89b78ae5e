"""All ranks train on the same batches."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.data_passes import data_passes, is_data_parallel
from commprof.analysis.causes.facts import Facts
from commprof.analysis.evidence import Figure


def _rule(facts: Facts) -> Sighting | None:
    trained = [of_rank.training for of_rank in data_passes(facts)]
    if not trained or not all(of_rank.is_telling for of_rank in trained):
        return None
    # A rank may have begun another pass when the recording ended.
    number = min(len(of_rank.checksum) for of_rank in trained)
    compared = np.array([of_rank.checksum[:number] for of_rank in trained])
    if not (compared == compared[0]).all() or not is_data_parallel(facts):
        return None
    ranks = facts.world.world_size
    passes = f"in {number} passes over the data" if number > 1 else "in the pass over the data"
    return Sighting(
        f"All {ranks} ranks train on the same batches {passes}: the first batches are equal in "
        "content. The mean of equal gradients is the gradient of one rank, so that the ranks "
        f"together learn no more per step than one of them. Divided over {ranks} ranks, the "
        f"samples take 1/{ranks} of the steps of an epoch."
    )


CAUSE = CatalogueCause(
    id="same-batches",
    title="All ranks train on the same batches",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "Capture compares the content of the first 4 batches of each pass over a DataLoader. In "
        "all passes during which backward passes begin, the content is the same on all ranks, and "
        "differs from batch to batch. DDP exchanges gradients over all ranks, and no other calls "
        "divide a batch among ranks, as tensor, sequence and pipeline parallelism do. Random "
        "changes of the samples that differ from rank to rank hide the mistake."
    ),
    why=(
        "DDP does not divide the data. If each rank has a DataLoader with `shuffle=True` and the "
        "same seed, or reads the data in order, all ranks compute the same gradients: the job is "
        "as fast as a single rank, and its batch is no larger. With a DistributedSampler each rank "
        "has a part of its own, and an epoch takes fewer steps."
    ),
    gain_note=(
        "Not predicted, because no step becomes shorter: an epoch takes fewer steps. The cause is "
        "listed behind those that lengthen a step."
    ),
    fix=(
        "sampler = torch.utils.data.distributed.DistributedSampler(YOUR_DATA)\n"
        'options = {"sampler": sampler, "batch_size": YOUR_BATCH_SIZE}\n'
        "loader = torch.utils.data.DataLoader(YOUR_DATA, **options)\n"
        "sampler.set_epoch(YOUR_EPOCH)  # before each pass over the loader"
    ),
    source="https://github.com/NVIDIA/DeepLearningExamples/pull/622",
)
