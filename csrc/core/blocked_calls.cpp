#include "core/blocked_calls.h"

#include <algorithm>

namespace commprof {

void BlockedCall::measure() noexcept {
  uint32_t& left = measuredLeft();
  left -= std::min(left, 1u);
  const ThreadWaits& waits = ThreadWaits::here();
  waits_ = waits.ended;
  // While another wait is open, that wait counts the time.
  measures_ = waits.open == 0;
  if (measures_) {
    blocks_ = threadBlocks();
    cpu_ns_ = threadCpuNs();
  }
}

uint64_t BlockedCall::blockedOf(uint64_t wall_ns) const noexcept {
  if (!measures_) {
    measuredLeft() = kMeasuredCalls;
    return 0;
  }
  const uint64_t cpu_ns = threadCpuNs() - cpu_ns_;
  if (cpu_ns >= wall_ns || threadBlocks() == blocks_ ||
      ThreadWaits::here().ended != waits_) {
    return 0;
  }
  measuredLeft() = kMeasuredCalls;
  return wall_ns - cpu_ns;
}

} // namespace commprof
