#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tune/compress/codecs/block_codec.h"
#include "tune/compress/schemes/block_scheme.h"
#include "tune/kernels/blocks/block_quant.h"

namespace commprof::compress {

namespace {

// A message contains all scales, then all integers. int8's scales are sent as
// bfloat16 values.
struct Int8 {
  using Integer = int8_t;
  using Scale = uint16_t;
  static constexpr size_t kBlock = kernels::kInt8Block;
  static size_t integerBytes(size_t n) {
    return n;
  }
  static constexpr auto encode = kernels::encodeInt8;
  static constexpr auto decode = kernels::decodeInt8;
  static constexpr auto reduce = kernels::reduceInt8;
  static constexpr auto sum = kernels::sumInt8;
};

struct Int4 {
  using Integer = uint8_t;
  using Scale = uint32_t;
  static constexpr size_t kBlock = kernels::kInt4Block;
  static size_t integerBytes(size_t n) {
    return kernels::int4Bytes(n);
  }
  static constexpr auto encode = kernels::encodeInt4;
  static constexpr auto decode = kernels::decodeInt4;
  static constexpr auto reduce = kernels::reduceInt4;
  static constexpr auto sum = kernels::sumInt4;
};

template <class Kind>
class IntegerCodec : public BlockCodec {
  using Integer = typename Kind::Integer;
  using Scale = typename Kind::Scale; // the upper bits of an fp32 value
  static constexpr int kLeftOut = 32 - 8 * int(sizeof(Scale));

  static size_t blocks(size_t n) {
    return (n + Kind::kBlock - 1) / Kind::kBlock;
  }
  static size_t scaleBytes(size_t n) {
    return blocks(n) * sizeof(Scale);
  }
  static Integer* integers(std::byte* bytes, size_t n) {
    return reinterpret_cast<Integer*>(bytes + scaleBytes(n));
  }
  static const Integer* integers(const std::byte* bytes, size_t n) {
    return reinterpret_cast<const Integer*>(bytes + scaleBytes(n));
  }

  static void putScales(const std::vector<float>& scales, std::byte* out) {
    for (const float& scale : scales) {
      uint32_t bits;
      std::memcpy(&bits, &scale, sizeof(bits));
      const auto upper = Scale(bits >> kLeftOut);
      std::memcpy(out, &upper, sizeof(upper));
      out += sizeof(upper);
    }
  }
  static std::vector<float> scalesOf(
      const std::byte* in,
      size_t first,
      size_t count) {
    std::vector<float> scales(count);
    in += first * sizeof(Scale);
    for (float& scale : scales) {
      Scale upper;
      std::memcpy(&upper, in, sizeof(upper));
      const uint32_t bits = uint32_t(upper) << kLeftOut;
      std::memcpy(&scale, &bits, sizeof(scale));
      in += sizeof(upper);
    }
    return scales;
  }

  struct Encodings {
    Encodings(std::span<const std::byte* const> in, size_t n) {
      for (const std::byte* bytes : in) {
        values.push_back(integers(bytes, n));
        scale_values.push_back(scalesOf(bytes, 0, blocks(n)));
        scales.push_back(scale_values.back().data());
      }
    }
    std::vector<const Integer*> values;
    std::vector<std::vector<float>> scale_values;
    std::vector<const float*> scales;
  };

 public:
  size_t block() const override {
    return Kind::kBlock;
  }
  size_t bytes(size_t n) const override {
    return scaleBytes(n) + Kind::integerBytes(n);
  }

  void encode(
      const float* x,
      float* residual,
      size_t n,
      int /*exponent*/,
      std::byte* out) const override {
    std::vector<float> scales(blocks(n));
    Kind::encode(x, residual, integers(out, n), scales.data(), n);
    putScales(scales, out);
  }

  bool valid(const std::byte* in, size_t n) const override {
    const std::vector<float> scales = scalesOf(in, 0, blocks(n));
    return std::all_of(scales.begin(), scales.end(), [](float scale) {
      return std::isfinite(scale) && scale >= 0;
    });
  }

  void reduce(
      std::span<const std::byte* const> in,
      std::span<const int> /*exponents*/,
      size_t n,
      std::byte* out) const override {
    const Encodings all(in, n);
    std::vector<float> out_scales(blocks(n));
    Kind::reduce(
        all.values.data(),
        all.scales.data(),
        int(in.size()),
        1.0f / float(in.size()),
        integers(out, n),
        out_scales.data(),
        n);
    putScales(out_scales, out);
  }

  void mean(
      std::span<const std::byte* const> in,
      std::span<const int> /*exponents*/,
      size_t n,
      float* out) const override {
    const Encodings all(in, n);
    Kind::sum(
        all.values.data(),
        all.scales.data(),
        int(in.size()),
        1.0f / float(in.size()),
        out,
        n);
  }

  void decode(
      const std::byte* in,
      size_t n,
      Part part,
      int /*exponent*/,
      float* out) const override {
    const std::vector<float> scales =
        scalesOf(in, part.begin / Kind::kBlock, blocks(part.count));
    Kind::decode(
        integers(in, n) + Kind::integerBytes(part.begin),
        scales.data(),
        out,
        part.count,
        1.0f);
  }
};

} // namespace

std::unique_ptr<Scheme> makeInt8(const SchemeSettings& settings) {
  return std::make_unique<BlockScheme>(
      std::make_unique<IntegerCodec<Int8>>(), settings.piece_bytes);
}
std::unique_ptr<Scheme> makeInt4(const SchemeSettings& settings) {
  return std::make_unique<BlockScheme>(
      std::make_unique<IntegerCodec<Int4>>(), settings.piece_bytes);
}

} // namespace commprof::compress
