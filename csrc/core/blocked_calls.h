// Measures for how long a thread was blocked in a call that issues a
// collective.
//
// Issuing usually returns immediately, but some calls wait for other ranks, for
// example a first call, which connects ranks. With
// TORCH_DISTRIBUTED_DEBUG=DETAIL, torch first compares every call between the
// ranks. A thread that waits sleeps, so
// its wall time exceeds its CPU time, and it gives up its core. A preempted
// thread does not give up its core.
//
// Reading the CPU time, and how often the core was given up, takes two system
// calls (about 2 us on a virtual machine). So both are read only where a call
// may block: in a thread's first calls, after a long call, or if the caller
// expects the call to block. A counter of the core, which is cheaper to read,
// shows whether a call was long.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace commprof {

// A call shorter than this did not wait for another rank.
inline constexpr uint64_t kLongCallNs = 50'000;

// Counts of the calling thread's recorded waits.
struct ThreadWaits {
  uint32_t open = 0; // waits that this thread is in now
  uint64_t ended = 0;
  static ThreadWaits& here() noexcept {
    static thread_local constinit ThreadWaits waits;
    return waits;
  }
};

// Create it before a call. It measures for how long the call was blocked.
class BlockedCall {
 public:
  // `expected`: the call probably waits.
  explicit BlockedCall(bool expected) noexcept : begin_ticks_(ticks()) {
    if (expected || measuredLeft() > 0) {
      measure();
    }
  }

  // Returns for how many ns the thread was blocked since `begin_ns`. Returns 0
  // if this is unknown, or if a wait inside the call was recorded. Call it
  // once, right after the measured call.
  uint64_t blockedNs(uint64_t begin_ns) noexcept {
    if (ticks() - begin_ticks_ < leastTicks(kLongCallNs)) {
      return 0;
    }
    const uint64_t wall_ns = nowNs() - begin_ns;
    return wall_ns < kLongCallNs ? 0 : blockedOf(wall_ns);
  }

 private:
  // Number of calls that are measured when a thread begins, and after a long
  // call.
  static constexpr uint32_t kMeasuredCalls = 16;
  static uint32_t& measuredLeft() noexcept {
    static thread_local constinit uint32_t left = kMeasuredCalls;
    return left;
  }
  void measure() noexcept;
  uint64_t blockedOf(uint64_t wall_ns) const noexcept;

  const uint64_t begin_ticks_;
  bool measures_ = false;
  uint64_t waits_ = 0;
  uint64_t blocks_ = 0;
  uint64_t cpu_ns_ = 0;
};

} // namespace commprof
