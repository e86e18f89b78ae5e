// How often always-on mode writes its summary to the trace: a process that is
// killed loses what came after the last one.
#pragma once

#include <algorithm>
#include <cstdint>

namespace commprof {

// With the drain that is 0.2 s away at the most: within a second.
constexpr uint64_t kSummaryEveryNs = 800'000'000;
constexpr uint64_t kSummaryAtMostNs = 5'000'000'000;
constexpr uint64_t kTimesWhatItTook = 1000;

// How long until the next summary may be written, after one that took this much
// CPU time: a core spends at most 0.1 % on them, unless a killed process would
// lose more than five seconds for it.
constexpr uint64_t untilNextSummaryNs(uint64_t took_cpu_ns) noexcept {
  const uint64_t took_ns = std::min(took_cpu_ns, kSummaryAtMostNs);
  return std::clamp(
      took_ns * kTimesWhatItTook, kSummaryEveryNs, kSummaryAtMostNs);
}

} // namespace commprof
