#include <algorithm>
#include <cmath>
#include <vector>

#include "compress/block_codec.h"
#include "kernels/block_quant.h"

namespace commprof::compress {

namespace {

// Scales first, so that they are aligned, then the integers.
struct Int8 {
  using Integer = int8_t;
  static constexpr size_t kBlock = kernels::kInt8Block;
  static size_t integerBytes(size_t n) {
    return n;
  }
  static constexpr auto encode = kernels::encodeInt8;
  static constexpr auto decode = kernels::decodeInt8;
  static constexpr auto reduce = kernels::reduceInt8;
};

struct Int4 {
  using Integer = uint8_t;
  static constexpr size_t kBlock = kernels::kInt4Block;
  static size_t integerBytes(size_t n) {
    return kernels::int4Bytes(n);
  }
  static constexpr auto encode = kernels::encodeInt4;
  static constexpr auto decode = kernels::decodeInt4;
  static constexpr auto reduce = kernels::reduceInt4;
};

template <class Kind>
class IntegerCodec : public BlockCodec {
  using Integer = typename Kind::Integer;

  static size_t blocks(size_t n) {
    return (n + Kind::kBlock - 1) / Kind::kBlock;
  }
  static float* scales(std::byte* bytes) {
    return reinterpret_cast<float*>(bytes);
  }
  static const float* scales(const std::byte* bytes) {
    return reinterpret_cast<const float*>(bytes);
  }
  static Integer* integers(std::byte* bytes, size_t n) {
    return reinterpret_cast<Integer*>(bytes + blocks(n) * sizeof(float));
  }
  static const Integer* integers(const std::byte* bytes, size_t n) {
    return reinterpret_cast<const Integer*>(bytes + blocks(n) * sizeof(float));
  }

 public:
  size_t block() const override {
    return Kind::kBlock;
  }
  size_t bytes(size_t n) const override {
    return blocks(n) * sizeof(float) + Kind::integerBytes(n);
  }

  void encode(
      const float* x,
      float* residual,
      size_t n,
      int /*exponent*/,
      std::byte* out) const override {
    Kind::encode(x, residual, integers(out, n), scales(out), n);
  }

  bool valid(const std::byte* in, size_t n) const override {
    return std::all_of(scales(in), scales(in) + blocks(n), [](float scale) {
      return std::isfinite(scale) && scale >= 0;
    });
  }

  void reduce(
      std::span<const std::byte* const> in,
      std::span<const int> /*exponents*/,
      size_t n,
      std::byte* out) const override {
    std::vector<const Integer*> values;
    std::vector<const float*> in_scales;
    for (const std::byte* bytes : in) {
      values.push_back(integers(bytes, n));
      in_scales.push_back(scales(bytes));
    }
    Kind::reduce(
        values.data(),
        in_scales.data(),
        int(in.size()),
        1.0f / float(in.size()),
        integers(out, n),
        scales(out),
        n);
  }

  void decode(
      const std::byte* in,
      size_t n,
      Part part,
      int /*exponent*/,
      float* out) const override {
    Kind::decode(
        integers(in, n) + Kind::integerBytes(part.begin),
        scales(in) + part.begin / Kind::kBlock,
        out,
        part.count,
        1.0f);
  }
};

} // namespace

std::unique_ptr<BlockCodec> makeInt8Codec() {
  return std::make_unique<IntegerCodec<Int8>>();
}
std::unique_ptr<BlockCodec> makeInt4Codec() {
  return std::make_unique<IntegerCodec<Int4>>();
}

} // namespace commprof::compress
