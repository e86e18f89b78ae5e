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

// Returns a band that very likely contains the k-th largest key of x (+
// residual, if not null), or the full range if n is small. The array is divided
// into equal parts, and the sample has one whole cache line of each, because
// neighbouring values belong to the same layer and have a similar scale.
// Changes scratch.seed and scratch.keys.
KeyBand guessBand(
    const float* x,
    const float* residual,
    size_t n,
    size_t k,
    TopKScratch& scratch);

} // namespace commprof::kernels
