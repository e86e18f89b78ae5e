#include "kernels/random_k.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "kernels/philox.h"

namespace commprof::kernels {

void chooseBlocks(
    uint64_t seed,
    uint64_t counter,
    size_t n,
    size_t count,
    std::vector<uint32_t>& blocks) {
  const size_t all = (n + kRandomBlock - 1) / kRandomBlock;
  count = std::min(count, all);
  blocks.clear();
  blocks.reserve(count);
  // Floyd's sampling (Bentley and Floyd, CACM 1987): one draw per block.
  PhiloxStream stream(seed, counter);
  std::unordered_set<uint32_t> chosen;
  for (size_t i = all - count; i < all; ++i) {
    const uint32_t drawn = stream.below(uint32_t(i + 1));
    const uint32_t block = chosen.insert(drawn).second ? drawn : uint32_t(i);
    chosen.insert(block);
    blocks.push_back(block);
  }
  std::sort(blocks.begin(), blocks.end());
}

void gatherBlocks(
    const float* x,
    float* residual,
    size_t n,
    const std::vector<uint32_t>& blocks,
    float* packed) {
  if (residual != nullptr) {
    for (size_t i = 0; i < n; ++i) {
      residual[i] += x[i];
    }
  }
  const float* from = residual != nullptr ? residual : x;
  for (size_t j = 0; j < blocks.size(); ++j) {
    const size_t first = size_t(blocks[j]) * kRandomBlock;
    const size_t size = std::min(kRandomBlock, n - first);
    float* to = packed + j * kRandomBlock;
    std::memcpy(to, from + first, size * sizeof(float));
    std::fill(to + size, to + kRandomBlock, 0.0f);
    if (residual != nullptr) {
      std::fill(residual + first, residual + first + size, 0.0f);
    }
  }
}

void scatterBlocks(
    const float* packed,
    size_t n,
    const std::vector<uint32_t>& blocks,
    float factor,
    float* out) {
  std::fill(out, out + n, 0.0f);
  for (size_t j = 0; j < blocks.size(); ++j) {
    const size_t first = size_t(blocks[j]) * kRandomBlock;
    const size_t size = std::min(kRandomBlock, n - first);
    for (size_t i = 0; i < size; ++i) {
      out[first + i] = packed[j * kRandomBlock + i] * factor;
    }
  }
}

} // namespace commprof::kernels
