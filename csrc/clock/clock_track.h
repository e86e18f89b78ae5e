// How this process's clock relates to rank 0's, for use while the job runs:
// what commprof/analysis/align/clocks.py finds afterwards from the same
// comparisons.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "clock/clock_message.h"

namespace commprof {

// Rank 0's clock less this one, as a straight line through comparisons.
struct ClockLine {
  uint64_t at_ns = 0; // of the last comparison, by this clock
  int64_t offset_ns = 0; // then
  uint64_t error_ns = 0; // bound on its error
  double rate = 0; // ns of offset gained per ns
  double rate_error = 0; // bound on its error

  int64_t offsetAt(uint64_t own_ns) const noexcept;
  // Bound on its error: that of the last comparison, growing with distance.
  uint64_t errorAt(uint64_t own_ns) const noexcept;
};

// Any thread.
class ClockTrack {
 public:
  // Comparisons that the drift is taken from: 80 s of them in a long run.
  static constexpr size_t kKept = 8;
  // Bounds of drift where comparisons tell none, and of its change unseen, as
  // in commprof/analysis/align/clocks.py.
  static constexpr double kMostDrift = 500e-6;
  static constexpr double kUnseenWander = 1e-6;

  // This clock is rank 0's: nothing is to be compared.
  void setSame() noexcept;
  // A comparison that tells less than the line does is left out; one that
  // contradicts it begins a new line.
  void add(const ClockSample& sample) noexcept;
  // Nothing before the first comparison.
  std::optional<ClockLine> line() const noexcept;

 private:
  ClockLine lineLocked() const noexcept;

  mutable std::mutex mutex_; // everything below
  bool same_ = false;
  std::array<ClockSample, kKept> kept_{}; // in a circle
  size_t count_ = 0; // ever put there
};

} // namespace commprof
