#include "kernels/random_k.h"
#include "kernels/random_k_table.h"
#include "kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

constexpr size_t kLanes = 16;

// Calls rest(from, to) for the stretches between the chosen blocks, and
// chosen(from, to, j) for the j-th of them; the last block may be short.
template <class Rest, class Chosen>
inline void walk(
    size_t begin,
    size_t end,
    ChosenBlocks blocks,
    const Rest& rest,
    const Chosen& chosen) {
  size_t at = begin;
  for (size_t j = 0; j < blocks.count; ++j) {
    const size_t from = size_t(blocks.first[j]) * kRandomBlock;
    const size_t to = from + kRandomBlock < end ? from + kRandomBlock : end;
    rest(at, from);
    chosen(from, to, j);
    at = to;
  }
  rest(at, end);
}

void addInto(const float* x, float* residual, size_t begin, size_t end) {
  size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    store(residual + i, add(load(x + i), load(residual + i)));
  }
  for (; i < end; ++i) {
    residual[i] = x[i] + residual[i];
  }
}

void gather(
    const float* x,
    float* residual,
    size_t begin,
    size_t end,
    ChosenBlocks blocks,
    float* packed) {
  const auto rest = [&](size_t from, size_t to) {
    if (residual != nullptr) {
      addInto(x, residual, from, to);
    }
  };
  const auto chosen = [&](size_t from, size_t to, size_t j) {
    float* out = packed + j * kRandomBlock;
    const float* source = x;
    if (residual != nullptr) {
      addInto(x, residual, from, to);
      source = residual;
    }
    const size_t bytes = (to - from) * sizeof(float);
    std::memcpy(out, source + from, bytes);
    std::memset(out + (to - from), 0, kRandomBlock * sizeof(float) - bytes);
    if (residual != nullptr) {
      std::memset(residual + from, 0, bytes);
    }
  };
  walk(begin, end, blocks, rest, chosen);
}

void scatter(
    const float* packed,
    size_t begin,
    size_t end,
    ChosenBlocks blocks,
    float factor,
    float* out) {
  const auto rest = [&](size_t from, size_t to) {
    std::memset(out + from, 0, (to - from) * sizeof(float));
  };
  const auto chosen = [&](size_t from, size_t to, size_t j) {
    const float* in = packed + j * kRandomBlock;
    for (size_t i = from; i < to; ++i) {
      out[i] = in[i - from] * factor;
    }
  };
  walk(begin, end, blocks, rest, chosen);
}

} // namespace

const RandomKTable randomKTable = {gather, scatter};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
