// Estimate of the k-th largest key from a sample.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tune/kernels/topk/topk.h"

namespace commprof::kernels {

inline constexpr int32_t kLargestKey = 0x7fffffff;

struct KeyBand {
  int32_t lowest = 0;
  int32_t highest = kLargestKey;
};

// Returns a band that very likely contains the k-th largest key of x, or of x +
// residual if residual is not null. For small n, the band contains all keys.
// The sample is spread over the array, because neighbouring values belong to
// one layer and have a similar scale. Changes scratch.seed and scratch.keys.
KeyBand guessBand(
    const float* x,
    const float* residual,
    size_t n,
    size_t k,
    TopKScratch& scratch);

} // namespace commprof::kernels
