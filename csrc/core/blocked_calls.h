// Time for which a thread was blocked inside a call that issues a collective.
//
// Issuing is supposed to return immediately, but some calls wait for other
// ranks: TORCH_DISTRIBUTED_DEBUG=DETAIL compares all calls between the ranks
// before they are issued, first calls connect, and backends of other authors
// may run the whole collective inside the call. A thread that waits in such a
// call sleeps, so its wall time exceeds its CPU time, and it gives up its core
// by itself. A thread that is preempted loses its core without giving it up.
//
// It takes two system calls (about 2 us on a virtual machine) to read the CPU
// time and the number of times that the thread has given up its core. So both
// are read only where a call may block: in a thread's first calls, after a long
// call, or if the caller expects the call to block. If they were not read
// before a long call, that call is not counted, since the thread may have
// worked. Whether a call was long is determined with a counter of the core,
// because reading the counter takes a third of the time of reading a clock.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace commprof {

// A shorter call did not wait for another rank.
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

// Placed before a call; tells afterwards how long the call was blocked.
class BlockedCall {
 public:
  // `expected`: the call probably waits.
  explicit BlockedCall(bool expected) noexcept : begin_ticks_(ticks()) {
    if (expected || measuredLeft() > 0) {
      measure();
    }
  }

  // Returns for how many ns the thread was blocked since `begin_ns`. Returns 0
  // if the thread was not blocked, if this is not known, or if a wait inside
  // the call was recorded. Call it once, right after the call.
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
  // How many of this thread's next calls are measured.
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
