// Number of elements that a ratio-based scheme sends out of n.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace commprof::compress {

// In fp32 smaller buckets cost less than what a scheme saves on them, and a
// share of them would be no value at all.
inline constexpr size_t kSmallestSparse = 4096; // values: 16 KiB

// Integer arithmetic, so that all ranks find the same. At least one, of n > 0.
inline size_t shareOf(size_t n, uint64_t parts_per_billion) {
  const uint64_t share = uint64_t(n) * parts_per_billion / 1'000'000'000;
  return std::clamp<size_t>(size_t(share), std::min<size_t>(n, 1), n);
}

} // namespace commprof::compress
