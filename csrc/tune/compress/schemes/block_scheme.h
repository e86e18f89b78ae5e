// Scheme that sends every value in fewer bits, in two phases, or in one if that
// sends no more (block_exchange.h).
//
// Non-finite values must not change a residual, so if there is one, a pass
// looks for them first. Otherwise the note of a piece (pieces.h) reports them.
#pragma once

#include <memory>

#include "tune/compress/codecs/block_codec.h"
#include "tune/compress/exchange/block_exchange.h"
#include "tune/compress/exchange/messages/pieces.h"
#include "tune/compress/schemes/scheme.h"

namespace commprof::compress {

class BlockScheme : public Scheme {
 public:
  BlockScheme(std::unique_ptr<BlockCodec> codec, size_t piece_bytes);

  Snapshot inspect(const Proposal& proposal) override;
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

 private:
  Pieces piecesOf(size_t n, int world, size_t trailer) const;

  std::unique_ptr<BlockCodec> codec_;
  size_t piece_bytes_;
  BlockScratch scratch_;
};

} // namespace commprof::compress
