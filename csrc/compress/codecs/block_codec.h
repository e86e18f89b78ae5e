// Values as the block scheme sends them: fixed length, in blocks, and such that
// encodings can be summed, into one or into plain values.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "compress/exchange/messages/wire.h"

namespace commprof::compress {

class BlockCodec {
 public:
  virtual ~BlockCodec() = default;

  // Ranges begin at multiples of this many values.
  virtual size_t block() const = 0;
  virtual size_t bytes(size_t n) const = 0;

  // `exponent`: see half_scale.h; ignored by codecs with scales of their own.
  // All byte pointers are aligned to 16. The residual may be null.
  virtual void encode(
      const float* x,
      float* residual,
      size_t n,
      int exponent,
      std::byte* out) const = 0;

  // Of a message from elsewhere, bytes(n) long.
  virtual bool valid(const std::byte* in, size_t n) const = 0;

  // Mean of in.size() encodings, summed in fp32 in their order and rounded
  // once; its exponent is the smallest of `exponents`.
  virtual void reduce(
      std::span<const std::byte* const> in,
      std::span<const int> exponents,
      size_t n,
      std::byte* out) const = 0;

  // The same mean, not rounded: the same bits wherever the encodings are.
  virtual void mean(
      std::span<const std::byte* const> in,
      std::span<const int> exponents,
      size_t n,
      float* out) const = 0;

  // `part` begins at a multiple of block().
  struct Part {
    size_t begin = 0;
    size_t count = 0;
  };
  virtual void decode(
      const std::byte* in,
      size_t n,
      Part part,
      int exponent,
      float* out) const = 0;
};

std::unique_ptr<BlockCodec> makeHalfCodec();
std::unique_ptr<BlockCodec> makeBfloat16Codec();
std::unique_ptr<BlockCodec> makeInt8Codec();
std::unique_ptr<BlockCodec> makeInt4Codec();

} // namespace commprof::compress
