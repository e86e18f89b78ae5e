#include "kernels/simd/vec.h"
#include "kernels/sparse_table.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

constexpr size_t kLanes = 16;

using Words = Padded<uint16_t, kLanes>;

// Up to sixteen words from any address.
inline Words readWords(const uint8_t* from, size_t count) {
  Words words;
  std::memcpy(words.values, from, count * sizeof(uint16_t));
  return words;
}
inline void writeWords(const Words& words, uint8_t* to, size_t count) {
  std::memcpy(to, words.values, count * sizeof(uint16_t));
}

struct Scale {
  explicit Scale(float scale)
      : factor(set1(scale)), inverse(set1(1.0f / scale)) {}

  F32 factor, inverse;
};

inline void packLanes(
    const int32_t* indices,
    const float* values,
    size_t count,
    const Scale& scale,
    float* residual,
    uint8_t* offsets,
    uint8_t* halves) {
  Words words;
  storeUint16(words.values, load(indices));
  writeWords(words, offsets, count);
  const F32 v = load(values);
  storeHalf(words.values, mul(v, scale.factor));
  writeWords(words, halves, count);
  if (residual != nullptr) {
    float lost[kLanes];
    store(lost, sub(v, mul(loadHalf(words.values), scale.inverse)));
    for (size_t i = 0; i < count; ++i) {
      residual[indices[i]] = lost[i];
    }
  }
}

void pack(
    const int32_t* indices,
    const float* values,
    size_t k,
    float scale,
    float* residual,
    uint8_t* offsets,
    uint8_t* halves) {
  const Scale scales(scale);
  size_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    uint8_t* to = offsets + 2 * i;
    packLanes(
        indices + i, values + i, kLanes, scales, residual, to, halves + 2 * i);
  }
  if (i < k) {
    Padded<int32_t, kLanes> last_indices;
    Padded<float, kLanes> last_values;
    last_indices.copyFrom(indices + i, k - i);
    last_values.copyFrom(values + i, k - i);
    packLanes(
        last_indices.values,
        last_values.values,
        k - i,
        scales,
        residual,
        offsets + 2 * i,
        halves + 2 * i);
  }
}

bool ascending(const uint8_t* offsets, size_t count) {
  size_t i = 1;
  for (; i + kLanes <= count; i += kLanes) {
    const Words here = readWords(offsets + 2 * i, kLanes);
    const Words before = readWords(offsets + 2 * (i - 1), kLanes);
    const Mask rising =
        greater(loadUint16(here.values), loadUint16(before.values));
    if (toBits(rising) != 0xffffu) {
      return false;
    }
  }
  for (; i < count; ++i) {
    const Words both = readWords(offsets + 2 * (i - 1), 2);
    if (both.values[1] <= both.values[0]) {
      return false;
    }
  }
  return true;
}

inline void addLanes(
    const uint8_t* offsets,
    const uint8_t* halves,
    size_t count,
    F32 factor,
    float* dense) {
  const Words places = readWords(offsets, count);
  const Words words = readWords(halves, count);
  float added[kLanes];
  store(added, mul(loadHalf(words.values), factor));
  for (size_t i = 0; i < count; ++i) {
    dense[places.values[i]] += added[i];
  }
}

void addPart(
    const uint8_t* offsets,
    const uint8_t* halves,
    size_t count,
    float factor,
    float* dense) {
  const F32 factors = set1(factor);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    addLanes(offsets + 2 * i, halves + 2 * i, kLanes, factors, dense);
  }
  addLanes(offsets + 2 * i, halves + 2 * i, count - i, factors, dense);
}

} // namespace

const SparseTable sparseTable = {pack, ascending, addPart};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
