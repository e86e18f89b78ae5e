#include "core/blocked_calls.h"

#include <algorithm>

namespace commprof {

namespace {

// Calls that are measured at a thread's begin, and after one that took long.
constexpr uint32_t kMeasuredCalls = 16;

thread_local uint32_t measured_left = kMeasuredCalls;

} // namespace

ThreadWaits& ThreadWaits::here() noexcept {
  static thread_local ThreadWaits waits;
  return waits;
}

BlockedCall::BlockedCall(bool expected) noexcept
    : measures_(expected || measured_left > 0) {
  if (!measures_) {
    return;
  }
  measured_left -= std::min(measured_left, 1u);
  const ThreadWaits& waits = ThreadWaits::here();
  waits_ = waits.ended;
  measures_ = waits.open == 0; // else the time is part of that wait
  if (measures_) {
    blocks_ = threadBlocks();
    cpu_ns_ = threadCpuNs();
  }
}

uint64_t BlockedCall::blockedOf(uint64_t wall_ns) const noexcept {
  if (!measures_) {
    measured_left = kMeasuredCalls;
    return 0;
  }
  const uint64_t cpu_ns = threadCpuNs() - cpu_ns_;
  if (cpu_ns >= wall_ns || threadBlocks() == blocks_ ||
      ThreadWaits::here().ended != waits_) {
    return 0;
  }
  measured_left = kMeasuredCalls;
  return wall_ns - cpu_ns;
}

} // namespace commprof
