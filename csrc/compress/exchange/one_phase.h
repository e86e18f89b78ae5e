// Everyone sends its whole bucket, encoded, to everyone, and adds up what it
// gets and its own, in the order of ranks and from the encoded form: the same
// bits on all ranks, with one rounding per rank and none of the sum.
#pragma once

#include "compress/codecs/block_job.h"

namespace commprof::compress {

// `pieces` has one chunk.
void runOnePhase(
    const BlockCodec& codec,
    const Pieces& pieces,
    BlockScratch& scratch,
    Job& job);

} // namespace commprof::compress
