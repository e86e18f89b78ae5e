#include <algorithm>
#include <vector>

#include "tune/compress/codecs/block_codec.h"
#include "tune/compress/codecs/half_scale.h"
#include "tune/compress/schemes/block_scheme.h"
#include "tune/kernels/blocks/cast.h"

namespace commprof::compress {

namespace {

uint16_t* half(std::byte* bytes) {
  return reinterpret_cast<uint16_t*>(bytes);
}
const uint16_t* half(const std::byte* bytes) {
  return reinterpret_cast<const uint16_t*>(bytes);
}
std::vector<const uint16_t*> halves(std::span<const std::byte* const> in) {
  std::vector<const uint16_t*> out;
  for (const std::byte* bytes : in) {
    out.push_back(half(bytes));
  }
  return out;
}

class SixteenBitCodec : public BlockCodec {
 public:
  size_t block() const override {
    return 64; // any size works; 64 keeps messages aligned
  }
  size_t bytes(size_t n) const override {
    return 2 * n;
  }
  // All bit patterns are numbers or NaNs, so every message is well-formed.
  bool valid(const std::byte*, size_t) const override {
    return true;
  }
};

class HalfCodec : public SixteenBitCodec {
 public:
  void encode(
      const float* x,
      float* residual,
      size_t n,
      int exponent,
      std::byte* out) const override {
    kernels::encodeHalf(x, residual, half(out), n, powerOfTwo(exponent));
  }

  void reduce(
      std::span<const std::byte* const> in,
      std::span<const int> exponents,
      size_t n,
      std::byte* out) const override {
    const int result = *std::min_element(exponents.begin(), exponents.end());
    const std::vector<float> factors = factorsTo(result, exponents);
    kernels::reduceHalf(
        halves(in).data(), factors.data(), int(in.size()), half(out), n);
  }

  void mean(
      std::span<const std::byte* const> in,
      std::span<const int> exponents,
      size_t n,
      float* out) const override {
    const std::vector<float> factors = factorsTo(0, exponents);
    kernels::sumHalf(halves(in).data(), factors.data(), int(in.size()), out, n);
  }

  void decode(
      const std::byte* in,
      size_t /*n*/,
      Part part,
      int exponent,
      float* out) const override {
    kernels::decodeHalf(
        half(in) + part.begin, out, part.count, powerOfTwo(-exponent));
  }

 private:
  // Returns one factor for each encoding. An encoding times its factor is its
  // share of the mean, times 2^exponent.
  static std::vector<float> factorsTo(
      int exponent,
      std::span<const int> exponents) {
    std::vector<float> factors;
    for (const int own : exponents) {
      factors.push_back(powerOfTwo(exponent - own) / float(exponents.size()));
    }
    return factors;
  }
};

class Bfloat16Codec : public SixteenBitCodec {
 public:
  void encode(
      const float* x,
      float* residual,
      size_t n,
      int /*exponent*/,
      std::byte* out) const override {
    kernels::encodeBfloat16(x, residual, half(out), n);
  }

  void reduce(
      std::span<const std::byte* const> in,
      std::span<const int> /*exponents*/,
      size_t n,
      std::byte* out) const override {
    const std::vector<float> factors(in.size(), 1.0f / float(in.size()));
    kernels::reduceBfloat16(
        halves(in).data(), factors.data(), int(in.size()), half(out), n);
  }

  void mean(
      std::span<const std::byte* const> in,
      std::span<const int> /*exponents*/,
      size_t n,
      float* out) const override {
    const std::vector<float> factors(in.size(), 1.0f / float(in.size()));
    kernels::sumBfloat16(
        halves(in).data(), factors.data(), int(in.size()), out, n);
  }

  void decode(
      const std::byte* in,
      size_t /*n*/,
      Part part,
      int /*exponent*/,
      float* out) const override {
    kernels::decodeBfloat16(half(in) + part.begin, out, part.count, 1.0f);
  }
};

} // namespace

std::unique_ptr<BlockCodec> makeHalfCodec() {
  return std::make_unique<HalfCodec>();
}
std::unique_ptr<Scheme> makeHalf(const SchemeSettings& settings) {
  return std::make_unique<BlockScheme>(makeHalfCodec(), settings.piece_bytes);
}
std::unique_ptr<Scheme> makeBfloat16(const SchemeSettings& settings) {
  return std::make_unique<BlockScheme>(
      std::make_unique<Bfloat16Codec>(), settings.piece_bytes);
}

} // namespace commprof::compress
