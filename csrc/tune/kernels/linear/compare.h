// Statistics of whole arrays, each in one pass.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

// Bits of the largest |x|, which are ordered like |x|. They are 0x7f800000 or
// more if and only if a value is infinite or NaN. 0 for n = 0.
uint32_t maxAbsBits(const float* x, size_t n);
// Bits of the largest |x + y|.
uint32_t maxAbsBitsOfSum(const float* x, const float* y, size_t n);

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// Comparison of `sent` with `wanted`; sums in fp64 over blocks, in fixed order.
struct Comparison {
  double wanted_norm2 = 0; // sum of wanted^2
  double sent_norm2 = 0;
  double dot = 0;
  double error_norm2 = 0; // sum of (wanted - sent)^2
  uint64_t zeroed = 0; // values not zero in `wanted` that are zero in `sent`
};
Comparison compare(const float* wanted, const float* sent, size_t n);

} // namespace commprof::kernels
