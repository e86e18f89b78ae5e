// A store that the compiler chooses. Part of vec.h.
#pragma once

namespace commprof::kernels::COMMPROF_SIMD_LEVEL {
namespace {

template <bool kStreams>
inline void put(float* to, F32 v) {
  if constexpr (kStreams) {
    stream(to, v);
  } else {
    store(to, v);
  }
}

} // namespace
} // namespace commprof::kernels::COMMPROF_SIMD_LEVEL
