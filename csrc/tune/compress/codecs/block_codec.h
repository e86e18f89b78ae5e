// Codecs of the block scheme. They encode values in blocks. The length of an
// encoding depends only on the number of values.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tune/compress/exchange/messages/wire.h"

namespace commprof::compress {

class BlockCodec {
 public:
  virtual ~BlockCodec() = default;

  // Number of values per block. Ranges of a bucket that are encoded or decoded
  // separately begin at multiples of this number.
  virtual size_t block() const = 0;
  virtual size_t bytes(size_t n) const = 0;

  // `exponent`: see half_scale.h; only the half codec uses it. All byte
  // pointers are aligned to 16 bytes. `residual` may be null.
  virtual void encode(
      const float* x,
      float* residual,
      size_t n,
      int exponent,
      std::byte* out) const = 0;

  // True if a received message of bytes(n) bytes is well-formed.
  virtual bool valid(const std::byte* in, size_t n) const = 0;

  // Writes the encoded mean of the encodings `in`, summed in fp32 and in order.
  // `exponents`: one per encoding. The mean is rounded once, with the smallest
  // exponent.
  virtual void reduce(
      std::span<const std::byte* const> in,
      std::span<const int> exponents,
      size_t n,
      std::byte* out) const = 0;

  // Writes the mean without rounding. The result is bitwise the same on every
  // rank.
  virtual void mean(
      std::span<const std::byte* const> in,
      std::span<const int> exponents,
      size_t n,
      float* out) const = 0;

  // Range of the values to decode; it begins at a multiple of block().
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

} // namespace commprof::compress
