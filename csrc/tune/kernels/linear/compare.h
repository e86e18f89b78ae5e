// Statistics of whole arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

// Returns the bits of the largest |x|, or 0 for n = 0. The result is at least
// kInfinityBits if and only if a value is infinite or NaN.
uint32_t maxAbsBits(const float* x, size_t n);
// Returns the bits of the largest |x + y|.
uint32_t maxAbsBitsOfSum(const float* x, const float* y, size_t n);

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// How `sent` differs from `wanted`. Sums are computed in fp64, in fixed order.
struct Comparison {
  double wanted_norm2 = 0; // sum of wanted^2
  double sent_norm2 = 0;
  double dot = 0;
  double error_norm2 = 0; // sum of (wanted - sent)^2
  uint64_t zeroed = 0; // number of values that are zero only in `sent`
};
Comparison compare(const float* wanted, const float* sent, size_t n);

} // namespace commprof::kernels
