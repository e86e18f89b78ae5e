// Scales fp32 values by a power of two before their conversion to binary16. The
// largest magnitude becomes a value in [2^14, 2^15), or a smaller one if it is
// below 2^-86. So nothing overflows and little underflows.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace commprof::compress {

// Range of the exponents. With larger exponents, 2^-exponent / world could
// leave fp32's normal range. Values up to kLargestMagnitude need no smaller
// exponents.
inline constexpr int kMaxHalfExponent = 100;
inline constexpr int kMinHalfExponent = -66;

// Larger gradients count as not finite: their sums over ranks and over the
// columns of a matrix may exceed fp32's range.
inline constexpr float kLargestMagnitude = 0x1p80f;

inline bool isFinite(uint32_t max_abs_bits) {
  constexpr uint32_t kLargestBits = std::bit_cast<uint32_t>(kLargestMagnitude);
  return max_abs_bits <= kLargestBits;
}

// Returns the exponent for an array whose largest |x| has these bits, see
// kernels::maxAbsBits(). An array of zeros gets the largest exponent, so that
// it does not lower the exponent of a sum.
inline int halfExponent(uint32_t max_abs_bits) {
  const int exponent = int(max_abs_bits >> 23) - 127;
  return std::clamp(14 - exponent, kMinHalfExponent, kMaxHalfExponent);
}

inline float powerOfTwo(int exponent) {
  return std::ldexp(1.0f, exponent);
}

} // namespace commprof::compress
