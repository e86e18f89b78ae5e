// Power-of-two scale of fp32 values before their conversion to binary16: the
// largest magnitude becomes a value in [2^14, 2^15), so that nothing overflows
// and as little as possible underflows. (Without the scale, half of all
// gradients lie below binary16's normal range.)
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace commprof::compress {

// Range of the exponents. With larger exponents, 2^-exponent / world could be
// too small for a normal fp32 number. Only values above kLargestMagnitude would
// need smaller exponents.
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
// kernels::maxAbsBits(). An array of zeros gets the largest exponent: a sum
// gets the smallest exponent of its parts, and a rank without gradients must
// not lower the sum's exponent.
inline int halfExponent(uint32_t max_abs_bits) {
  const int exponent = int(max_abs_bits >> 23) - 127;
  return std::clamp(14 - exponent, kMinHalfExponent, kMaxHalfExponent);
}

inline float powerOfTwo(int exponent) {
  return std::ldexp(1.0f, exponent);
}

} // namespace commprof::compress
