// The last values of an array, too few for a kernel's step: worked on in a copy
// with zeros behind them, so that they get the same arithmetic as all others
// and nothing beyond the array is touched. Part of vec.h.
#pragma once

#include <cstddef>
#include <cstring>

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

// kSize values, zero until copyFrom() fills in the first ones.
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
