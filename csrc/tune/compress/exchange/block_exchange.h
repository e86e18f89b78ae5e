// Block exchanges in one phase or two.
//
// One phase: every rank sends its whole encoded bucket to all others and sums
// all encodings, including its own, in rank order. The result is equal to the
// bit on all ranks, with one rounding per rank and none of the sum.
//
// Two phases: each rank owns one chunk of the bucket. All ranks send the owner
// their encodings of its chunk. It sums them in fp32 in rank order, rounds once
// and sends the result to all. So a value is rounded twice, whereas a ring of
// 16-bit values rounds it once per rank. All ranks, the chunk's owner included,
// decode the same bytes. If a piece has non-finite values, the note (pieces.h)
// that follows its result reports this.
#pragma once

#include "tune/compress/codecs/block_codec.h"
#include "tune/compress/exchange/messages/pieces.h"
#include "tune/compress/schemes/scheme.h"
#include "tune/compress/scratch.h"

namespace commprof::compress {

// Buffers that are reused for every bucket.
struct BlockScratch {
  Scratch encoded; // this rank's gradients
  Scratch received; // other ranks' messages
  Scratch results; // encoded means, with two phases
};

// Encodes a range of the job's bucket and appends its note (pieces.h). Makes
// two passes over the values; in the second, they are in the caches.
void encodePiece(
    const BlockCodec& codec,
    const Job& job,
    Pieces::Range range,
    std::byte* out);

// Returns the note (pieces.h) of a piece of `count` values that `rank` sent;
// throws PayloadError if the bytes are malformed.
PieceNote checkPiece(
    const BlockCodec& codec,
    const Channel& channel,
    int rank,
    const std::byte* in,
    size_t count);

// Exchanges in one phase; `pieces` has one chunk.
void runOnePhase(
    const BlockCodec& codec,
    const Pieces& pieces,
    BlockScratch& scratch,
    Job& job);

// Exchanges in two phases; `pieces` has one chunk per rank.
void runTwoPhases(
    const BlockCodec& codec,
    const Pieces& pieces,
    BlockScratch& scratch,
    Job& job);

} // namespace commprof::compress
