// The power of two by which fp32 values are multiplied before they become
// binary16: the largest lands in [2^14, 2^15), so nothing overflows and as
// little as possible underflows. (Half of all gradients lie below binary16's
// normal range without it.)
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace commprof::compress {

// Above, 2^-exponent / world would leave fp32's normal range; below, values
// would be larger than kLargestMagnitude.
inline constexpr int kMaxHalfExponent = 100;
inline constexpr int kMinHalfExponent = -66;

// Larger gradients count as not finite: sums of them over ranks and over the
// columns of a matrix may leave fp32.
inline constexpr float kLargestMagnitude = 0x1p80f;

inline bool isFinite(uint32_t max_abs_bits) {
  constexpr uint32_t kLargestBits = std::bit_cast<uint32_t>(kLargestMagnitude);
  return max_abs_bits <= kLargestBits;
}

// From the bits of the largest |x|, see kernels::maxAbsBits().
inline int halfExponent(uint32_t max_abs_bits) {
  if (max_abs_bits == 0) {
    return 0;
  }
  const int exponent = int(max_abs_bits >> 23) - 127;
  return std::clamp(14 - exponent, kMinHalfExponent, kMaxHalfExponent);
}

inline float powerOfTwo(int exponent) {
  return std::ldexp(1.0f, exponent);
}

} // namespace commprof::compress
