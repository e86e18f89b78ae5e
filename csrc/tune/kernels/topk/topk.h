// Exact selection of the k values of largest magnitude: a threshold from a
// sample, which is very likely below the k-th largest magnitude; one pass that
// collects all values above it; and an exact selection among these. If the
// threshold was too high, further passes follow. Ties go to the lowest index.
// NaN counts as larger than infinity (order of the bits of |x|). The seed
// affects the time, never the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace commprof::kernels {

struct TopKStats {
  size_t count = 0; // min(k, n)
  size_t candidates = 0; // largest number held at one time, over all threads
  uint32_t passes = 0; // number of passes over the whole array
  // Number of additional selections that were made because a candidate buffer
  // was full.
  uint32_t reselections = 0;
};

// Memory that is reused between calls: for each thread (parallel.h), room for
// about 1.5 k + 68 Ki candidates.
struct TopKScratch {
  std::vector<int32_t> indices;
  std::vector<float> values;
  std::vector<int32_t> keys;
  uint64_t seed = 0x9e3779b97f4a7c15ull;
};

// Selects the k largest |x|. indices and values have room for min(k, n) and are
// filled in ascending order of index. Throws std::invalid_argument for n >=
// 2^31.
TopKStats topK(
    const float* x,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

// Selects from gradient + residual, with fused error feedback: residual becomes
// that sum, zero at the selected places; gradient is unchanged.
TopKStats topKFeedback(
    const float* gradient,
    float* residual,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

// Selects from gradient + residual out of place, in one pass: sum receives what
// topKFeedback() leaves in residual, residual is only read, and gradient
// becomes zero. sum is aligned to 64 bytes and overlaps with neither.
TopKStats topKMoved(
    float* gradient,
    const float* residual,
    float* sum,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

} // namespace commprof::kernels
