// One bit per value, and per block of 2048 the mean of |x| (signSGD with a
// scale: Bernstein et al. 2018; Karimireddy et al. 2019). Bit i % 64 of word
// i / 64 is set where the sign bit of value i is. A short last block takes the
// mean over its own values. Inputs must be finite.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

inline constexpr size_t kSignBlock = 2048;

constexpr size_t signBlocks(size_t n) {
  return (n + kSignBlock - 1) / kSignBlock;
}
constexpr size_t signWords(size_t n) {
  return (n + 63) / 64;
}

// Error feedback where residual is not null, as in cast.h.
void encodeSign(
    const float* x,
    float* residual,
    uint64_t* bits,
    float* scales,
    size_t n);
// out += +-scale of the block * factor
void addSign(
    const uint64_t* bits,
    const float* scales,
    float* out,
    size_t n,
    float factor);

} // namespace commprof::kernels
