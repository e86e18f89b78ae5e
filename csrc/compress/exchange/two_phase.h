// Each rank sums one chunk of the bucket: all send it theirs, encoded; it sums
// in fp32 in the order of ranks, rounds once, and sends the result to all. Two
// roundings in all, where a ring of 16-bit values has one per rank; and what
// everyone decodes, the owner of the chunk too, is the same bytes. Where a
// piece has values that are not finite, its owner's result says so.
#pragma once

#include "compress/codecs/block_job.h"

namespace commprof::compress {

// `pieces` has a chunk per rank.
void runTwoPhases(
    const BlockCodec& codec,
    const Pieces& pieces,
    BlockScratch& scratch,
    Job& job);

} // namespace commprof::compress
