// The last lanes of an array, fewer than sixteen: zeros come in behind them and
// nothing goes out there. Part of vec.h.
#pragma once

#include <cstddef>
#include <cstring>

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

// A copy of `count` values with zeros behind them, up to kSize.
template <class T, size_t kSize>
struct Padded {
  T values[kSize] = {};

  void copyFrom(const T* from, size_t count) {
    std::memcpy(values, from, count * sizeof(T));
  }
  void copyTo(T* to, size_t count) const {
    std::memcpy(to, values, count * sizeof(T));
  }
};

} // namespace
} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
