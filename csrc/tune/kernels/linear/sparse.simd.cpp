#include "tune/kernels/linear/linear_tables.h"
#include "tune/kernels/simd/vec.h"

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {

namespace {

constexpr size_t kLanes = 16;

using Words = Padded<uint16_t, kLanes>;

struct Scale {
  explicit Scale(float scale)
      : factor(set1(scale)), inverse(set1(1.0f / scale)) {}

  F32 factor, inverse;
};

// Packs 16 values. `lost` receives the rounding errors.
inline void packLanes(
    const int32_t* indices,
    const float* values,
    const Scale& scale,
    float* lost,
    uint16_t* offsets,
    uint16_t* halves) {
  storeUint16(offsets, load(indices));
  const F32 v = load(values);
  storeHalf(halves, mul(v, scale.factor));
  store(lost, sub(v, mul(loadHalf(halves), scale.inverse)));
}

inline void keepLost(
    const int32_t* indices,
    const float* lost,
    size_t count,
    float* residual) {
  if (residual != nullptr) {
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
    uint16_t* offsets,
    uint16_t* halves) {
  const Scale scales(scale);
  float lost[kLanes];
  size_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    packLanes(indices + i, values + i, scales, lost, offsets + i, halves + i);
    keepLost(indices + i, lost, kLanes, residual);
  }
  if (i == k) {
    return;
  }
  Padded<int32_t, kLanes> last_indices;
  Padded<float, kLanes> last_values;
  Words last_offsets, last_halves;
  last_indices.copyFrom(indices + i, k - i);
  last_values.copyFrom(values + i, k - i);
  packLanes(
      last_indices.values,
      last_values.values,
      scales,
      lost,
      last_offsets.values,
      last_halves.values);
  keepLost(indices + i, lost, k - i, residual);
  last_offsets.copyTo(offsets + i, k - i);
  last_halves.copyTo(halves + i, k - i);
}

bool ascending(const uint16_t* offsets, size_t count) {
  size_t i = 1;
  for (; i + kLanes <= count; i += kLanes) {
    const Mask rising =
        greater(loadUint16(offsets + i), loadUint16(offsets + i - 1));
    if (toBits(rising) != 0xffffu) {
      return false;
    }
  }
  for (; i < count; ++i) {
    if (offsets[i] <= offsets[i - 1]) {
      return false;
    }
  }
  return true;
}

inline void addLanes(
    const uint16_t* offsets,
    const uint16_t* halves,
    size_t count,
    F32 factor,
    float* dense) {
  float added[kLanes];
  store(added, mul(loadHalf(halves), factor));
  for (size_t i = 0; i < count; ++i) {
    dense[offsets[i]] += added[i];
  }
}

void addPart(
    const uint16_t* offsets,
    const uint16_t* halves,
    size_t count,
    float factor,
    float* dense) {
  const F32 factors = set1(factor);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    addLanes(offsets + i, halves + i, kLanes, factors, dense);
  }
  Words last;
  last.copyFrom(halves + i, count - i);
  addLanes(offsets + i, last.values, count - i, factors, dense);
}

} // namespace

const SparseTable sparseTable = {pack, ascending, addPart};

} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
