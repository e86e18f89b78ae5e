#include "kernels/topk.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace commprof::kernels {

namespace {

int32_t keyOf(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffff;
}

} // namespace

TopKStats topK(
    const float* x,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch) {
  if (n >= size_t(1) << 31) {
    throw std::invalid_argument(
        "top-K over " + std::to_string(n) +
        " values; indices have 31 bits: split the bucket");
  }
  TopKStats stats;
  stats.count = std::min(k, n);
  if (stats.count == 0) {
    return stats;
  }
  stats.passes = 1;
  stats.candidates = n;
  std::vector<int32_t>& order = scratch.indices;
  order.resize(n);
  for (size_t i = 0; i < n; ++i) {
    order[i] = int32_t(i);
  }
  const auto last = order.begin() + int64_t(stats.count);
  const auto before = [x](int32_t a, int32_t b) {
    const int32_t key_a = keyOf(x[a]), key_b = keyOf(x[b]);
    return key_a != key_b ? key_a > key_b : a < b;
  };
  std::nth_element(order.begin(), last - 1, order.end(), before);
  std::sort(order.begin(), last);
  for (size_t i = 0; i < stats.count; ++i) {
    indices[i] = order[i];
    values[i] = x[order[i]];
  }
  return stats;
}

TopKStats topKFeedback(
    const float* gradient,
    float* residual,
    size_t n,
    size_t k,
    int32_t* indices,
    float* values,
    TopKScratch& scratch) {
  for (size_t i = 0; i < n; ++i) {
    residual[i] += gradient[i];
  }
  const TopKStats stats = topK(residual, n, k, indices, values, scratch);
  for (size_t i = 0; i < stats.count; ++i) {
    residual[indices[i]] = 0.0f;
  }
  return stats;
}

} // namespace commprof::kernels
