// Encodes blocks of values as integers, for block_quant.simd.cpp.
#pragma once

#include <cstring>

#include "tune/kernels/blocks/block_quant.h"
#include "tune/kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

// read() returns values i to i + 15 of a block; i is a multiple of 16. write()
// calls integersAt(i) once for each multiple of 16.
struct Int8 {
  using Byte = int8_t;
  static constexpr size_t kValues = kInt8Block;
  static constexpr size_t kBytes = kInt8Block;
  static constexpr float kLargest = 127;
  static constexpr bool kShortScale = true; // a bfloat16

  static size_t bytes(size_t values) {
    return values;
  }
  static I32 read(const Byte* in, size_t i) {
    return loadInt8(in + i);
  }
  template <class IntegersAt>
  static void write(Byte* out, const IntegersAt& integersAt) {
    for (size_t i = 0; i < kValues; i += 16) {
      storeInt8(out + i, integersAt(i));
    }
  }
};

struct Int4 {
  using Byte = uint8_t;
  static constexpr size_t kValues = kInt4Block;
  static constexpr size_t kBytes = kInt4Block / 2;
  static constexpr float kLargest = 7;
  static constexpr bool kShortScale = false;

  static size_t bytes(size_t) {
    return kBytes;
  }
  static I32 read(const Byte* in, size_t i) {
    const Byte* at = in + i % kBytes;
    const I32 both = loadInt8(reinterpret_cast<const int8_t*>(at));
    return i < kBytes ? shiftRightSigned<28>(shiftLeft<28>(both))
                      : shiftRightSigned<4>(both);
  }
  template <class IntegersAt>
  static void write(Byte* out, const IntegersAt& integersAt) {
    for (size_t i = 0; i < kBytes; i += 16) {
      const I32 low = bitAnd(integersAt(i), set1(15));
      const I32 high = shiftLeft<4>(integersAt(i + kBytes));
      storeInt8(reinterpret_cast<int8_t*>(out + i), bitOr(low, high));
    }
  }
};

} // namespace

namespace {

inline I32 magnitudes(F32 v) {
  return bitAnd(asInt(v), set1(0x7fffffff));
}

inline float floatFromBits(int32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Rounds to nearest even. Infinities stay infinite and NaNs stay NaNs.
inline float asBfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return floatFromBits(int32_t(bits & 0xffff0000u));
}

// Returns the scale of a block. `largest_bits`: bits of the largest magnitude.
template <class Format>
inline float scaleFor(int32_t largest_bits) {
  constexpr float kSmallestNormal = 0x1p-126f;
  const float exact = floatFromBits(largest_bits) / Format::kLargest;
  const float scale = Format::kShortScale ? asBfloat16(exact) : exact;
  return exact < kSmallestNormal ? 0 : scale;
}

// With kFeedback, replaces each value by its rounding error.
template <class Format, bool kFeedback, class Values>
inline void writeBlock(
    Values* values,
    float scale,
    typename Format::Byte* out) {
  const F32 inverses = set1(scale == 0 ? 0 : 1 / scale);
  const F32 scales = set1(scale);
  Format::write(out, [&](size_t i) {
    const F32 v = load(values + i);
    const I32 integers = roundToInt(mul(v, inverses));
    if constexpr (kFeedback) {
      store(values + i, sub(v, mul(toFloat(integers), scales)));
    }
    return integers;
  });
}

// Returns the bits of the largest magnitude of a block. With kFeedback, uses x
// + residual and stores the sum in residual.
template <class Format, bool kFeedback>
inline int32_t largestOf(const float* x, float* residual) {
  I32 largest = set1(0);
  for (size_t i = 0; i < Format::kValues; i += 16) {
    F32 v = load(x + i);
    if constexpr (kFeedback) {
      v = add(v, load(residual + i));
      store(residual + i, v);
    }
    largest = max(largest, magnitudes(v));
  }
  return maxLanes(largest);
}

// Number of blocks that are encoded together, so that their slow operations
// overlap.
constexpr size_t kTogether = 4;

// Encodes `count` whole blocks, at most kTogether.
template <class Format, bool kFeedback>
inline void encodeBlocks(
    const float* x,
    float* residual,
    typename Format::Byte* out,
    float* scales,
    size_t count) {
  int32_t largest[kTogether];
  for (size_t b = 0; b < count; ++b) {
    const size_t first = b * Format::kValues;
    float* lost = kFeedback ? residual + first : nullptr;
    largest[b] = largestOf<Format, kFeedback>(x + first, lost);
  }
  for (size_t b = 0; b < count; ++b) {
    const size_t first = b * Format::kValues;
    typename Format::Byte* to = out + b * Format::kBytes;
    scales[b] = scaleFor<Format>(largest[b]);
    if constexpr (kFeedback) {
      writeBlock<Format, true>(residual + first, scales[b], to);
    } else {
      writeBlock<Format, false>(x + first, scales[b], to);
    }
  }
}

} // namespace

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
