// Exchanges of blocks, in one phase or in two, with memory of their own.
//
// In one phase everyone sends its whole bucket, encoded, to everyone, and adds
// up what it gets and its own, in the order of ranks and from the encoded form:
// the same bits on all ranks, with one rounding per rank and none of the sum.
//
// In two phases each rank sums one chunk of the bucket: all send it theirs,
// encoded; it sums in fp32 in the order of ranks, rounds once, and sends the
// result to all. Two roundings in all, where a ring of 16-bit values has one
// per rank; and what everyone decodes, the owner of the chunk too, is the same
// bytes. Where a piece has values that are not finite, its owner's result says
// so.
#pragma once

#include "compress/codecs/block_codec.h"
#include "compress/exchange/messages/pieces.h"
#include "compress/schemes/scheme.h"
#include "compress/scratch.h"

namespace commprof::compress {

// Used again for every bucket.
struct BlockScratch {
  Scratch encoded; // this rank's gradients
  Scratch received; // others'
  Scratch results; // means, of two phases
};

// Encodes these values of the job's bucket, and their note behind them. In two
// passes, of which the second finds a piece in the caches.
void encodePiece(
    const BlockCodec& codec,
    const Job& job,
    Pieces::Range range,
    std::byte* out);

// What `rank` says of a piece of `count` values; throws PayloadError where its
// bytes cannot be.
PieceNote checkPiece(
    const BlockCodec& codec,
    const Channel& channel,
    int rank,
    const std::byte* in,
    size_t count);

// `pieces` has one chunk.
void runOnePhase(
    const BlockCodec& codec,
    const Pieces& pieces,
    BlockScratch& scratch,
    Job& job);

// `pieces` has a chunk per rank.
void runTwoPhases(
    const BlockCodec& codec,
    const Pieces& pieces,
    BlockScratch& scratch,
    Job& job);

} // namespace commprof::compress
