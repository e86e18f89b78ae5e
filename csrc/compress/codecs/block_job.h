// What an exchange of blocks in one phase and one in two have in common: the
// memory, and what a piece looks like.
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

} // namespace commprof::compress
