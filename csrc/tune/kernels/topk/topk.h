// Exact selection of the k values of largest magnitude. A sample gives a
// threshold that is very likely below the k-th largest magnitude. One pass
// collects all values above the threshold, and the k largest of them are
// selected. If the threshold was too high, further passes follow.
//
// Among equal magnitudes, the lowest indices are selected. NaN counts as larger
// than infinity. The seed of the sample does not change the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace commprof::kernels {

struct TopKStats {
  size_t count = 0; // min(k, n)
  size_t candidates = 0; // largest number in a thread, summed over all threads
  uint32_t passes = 0; // number of passes over the whole array
  // Number of additional selections that were made because a candidate buffer
  // was full.
  uint32_t reselections = 0;
};

// Memory that is reused between calls. Each thread has room for about
// 1.5 * k + 70,000 candidates.
struct TopKScratch {
  std::vector<int32_t> indices;
  std::vector<float> values;
  std::vector<int32_t> keys;
  uint64_t seed = 0x9e3779b97f4a7c15ull;
};

// Selects the k largest |x|. `indices` and `values` need room for min(k, n)
// entries and are sorted by index. Throws std::invalid_argument for n >= 2^31.
TopKStats topK(
    const float* x,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

// Selects from gradient + residual. `residual` becomes this sum, with zeros at
// the selected places.
TopKStats topKFeedback(
    const float* gradient,
    float* residual,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

// Like topKFeedback(), but stores the sum in `sum`, leaves `residual` unchanged
// and sets `gradient` to zero. `sum` is aligned to 64 bytes and does not
// overlap with the other arrays.
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
