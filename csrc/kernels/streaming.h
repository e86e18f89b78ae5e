// When a kernel writes past the caches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commprof::kernels {

// Results of a second-level cache's size and more, which would have left it
// before anyone read them: writing them past the caches saves reading what they
// replace. stream() takes whole cache lines.
inline bool goPastCaches(const float* out, size_t n) {
  constexpr size_t kLeastBytes = size_t(1) << 20;
  return n * sizeof(float) >= kLeastBytes &&
      reinterpret_cast<uintptr_t>(out) % 64 == 0;
}

} // namespace commprof::kernels
