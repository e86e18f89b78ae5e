// Where the k-th largest key probably is, from a sample.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/topk/topk.h"

namespace commprof::kernels {

inline constexpr int32_t kLargestKey = 0x7fffffff;

struct KeyBand {
  int32_t lowest = 0;
  int32_t highest = kLargestKey;
};

// A band that very likely holds the key of the k-th largest of x (+ residual,
// where that is not null); everything, where n is small. The sample is of whole
// cache lines, one from each of as many equal parts of the array: values of one
// layer stand together and have one scale. Changes scratch.seed and
// scratch.keys.
KeyBand guessBand(
    const float* x,
    const float* residual,
    size_t n,
    size_t k,
    TopKScratch& scratch);

} // namespace commprof::kernels
