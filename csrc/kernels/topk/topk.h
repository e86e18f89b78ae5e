// The k values largest in magnitude, exactly: a sampled threshold that is very
// likely too low, one pass that collects all above it, and an exact choice
// among these; where the sample was too optimistic, further passes. Ties go to
// the lowest index. NaN counts as larger than infinity (order of the bits of
// |x|). The seed changes the time, never the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace commprof::kernels {

struct TopKStats {
  size_t count = 0; // min(k, n)
  size_t candidates = 0; // most that were held at one time, over all threads
  uint32_t passes = 0; // over the whole array
  uint32_t reselections = 0; // candidate buffer full: chosen again midway
};

// Memory that calls share, grown once: for each thread (parallel.h), at most
// 1.5 k + 64 Ki candidates.
struct TopKScratch {
  std::vector<int32_t> indices;
  std::vector<float> values;
  std::vector<int32_t> keys;
  uint64_t seed = 0x9e3779b97f4a7c15ull;
};

// indices and values: room for min(k, n), filled in ascending order of index.
// n < 2^31, else std::invalid_argument.
TopKStats topK(
    const float* x,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

// Error feedback fused: chooses among gradient + residual. Afterwards residual
// holds that sum, zero at the chosen places, and gradient is untouched.
TopKStats topKFeedback(
    const float* gradient,
    float* residual,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch);

// The same out of place, in one pass over all three: sum becomes what residual
// becomes there, residual is only read, and gradient becomes zero. sum is
// aligned to 64 bytes and overlaps with neither.
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
