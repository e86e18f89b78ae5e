// Writes down on this host's board what another host told.
#pragma once

#include <cstdint>

#include "always_on/arrivals/arrival_board.h"
#include "always_on/hosts/arrival_message.h"
#include "clock/clock_track.h"

namespace commprof {

// Not thread-safe; must not outlive the board.
class ArrivalReceiver {
 public:
  // Arrivals this far in the past, or in the future, are not believed.
  static constexpr uint64_t kPastNs = 60'000'000'000;
  static constexpr uint64_t kFutureNs = 1'000'000'000;

  explicit ArrivalReceiver(ArrivalBoard& board) : board_(board) {}

  // Of runs of groups that this host's ranks have joined, and whose numbers and
  // times are near theirs. Returns how many were taken.
  uint32_t take(
      const ArrivalMessage& message,
      const ClockLine& clock,
      uint64_t now_ns) noexcept;

 private:
  bool take(
      const ArrivalRun& run,
      uint64_t error_ns,
      const ClockLine& clock,
      uint64_t now_ns) noexcept;

  ArrivalBoard& board_;
};

} // namespace commprof
