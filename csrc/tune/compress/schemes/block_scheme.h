// Sends every value in fewer bits, with the exchanges of block_exchange.h.
//
// Non-finite values must not change a residual. So if there is a residual, a
// pass over the bucket looks for such values first. Without a residual, the
// note of each piece (pieces.h) reports such values.
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
