#include "tune/kernels/topk/topk.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "tune/kernels/topk/topk_sample.h"
#include "tune/kernels/topk/topk_search.h"

namespace commprof::kernels {

namespace {

// From this number of values on, stores of a new residual bypass the caches: a
// large residual would be evicted before the next step anyway.
constexpr size_t kStreamed = size_t(1) << 20;

void checkSize(size_t n) {
  if (n >= size_t(1) << 31) {
    throw std::invalid_argument(
        "top-K of " + std::to_string(n) +
        " values is not possible, because indices have 31 bits: split the "
        "bucket");
  }
}

} // namespace

TopKStats topK(
    const float* x,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch) {
  checkSize(n);
  k = std::min(k, n);
  if (k == 0) {
    return {};
  }
  const KeyBand band = guessBand(x, nullptr, n, k, scratch);
  return searchBand({x, nullptr, n}, k, band, indices, values, scratch);
}

TopKStats topKFeedback(
    const float* gradient,
    float* residual,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch) {
  checkSize(n);
  k = std::min(k, n);
  if (k == 0) {
    for (size_t i = 0; i < n; ++i) {
      residual[i] += gradient[i];
    }
    return {};
  }
  const KeyBand band = guessBand(gradient, residual, n, k, scratch);
  return searchBand({gradient, residual, n}, k, band, indices, values, scratch);
}

TopKStats topKMoved(
    float* gradient,
    const float* residual,
    float* sum,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch) {
  checkSize(n);
  k = std::min(k, n);
  if (k == 0) {
    for (size_t i = 0; i < n; ++i) {
      sum[i] = gradient[i] + residual[i];
      gradient[i] = 0;
    }
    return {};
  }
  const KeyBand band = guessBand(gradient, residual, n, k, scratch);
  const SearchInput input{gradient, sum, n, residual, gradient, n >= kStreamed};
  return searchBand(input, k, band, indices, values, scratch);
}

} // namespace commprof::kernels
