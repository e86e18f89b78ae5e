// Block exchanges in one phase or two.
//
// One phase: every rank sends its whole encoded bucket to all other ranks and
// sums all encodings in rank order. Each rank rounds once, and the results are
// bitwise equal on all ranks.
//
// Two phases: each rank owns one chunk of the bucket. All ranks send their
// encodings of a chunk to its owner. The owner sums the encodings in fp32 in
// rank order, rounds the sum and sends the result to all ranks. If a piece has
// non-finite values, the note (pieces.h) of its result reports this.
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

// Encodes a range of the job's bucket and appends the range's note (pieces.h).
void encodePiece(
    const BlockCodec& codec,
    const Job& job,
    Pieces::Range range,
    std::byte* out);

// Returns the note (pieces.h) of a piece of `count` values that `rank` sent.
// Throws PayloadError if the bytes are malformed.
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
