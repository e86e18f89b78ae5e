// Notices that this process did not run at all for a while: it was stopped
// (SIGSTOP, a debugger, a frozen cgroup), or its machine stood still.
//
// A thread that sleeps for a known time wakes up late, and after the planned
// time no thread of the process has used processor time. On a machine that is
// merely busy other threads of the process go on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>

#include "core/clock.h"

namespace commprof {

struct Pauses {
  uint64_t count = 0;
  uint64_t total_ns = 0;
  uint64_t longest_ns = 0;
  uint64_t longest_begin_ns = 0; // CLOCK_MONOTONIC
};

class PauseWatch {
 public:
  explicit PauseWatch(uint64_t cores = std::thread::hardware_concurrency())
      : cores_(std::max<uint64_t>(cores, 1)) {}

  // Around a sleep of `planned_ns` at most. endSleep() says whether it held a
  // pause; of that begin and length are known to half of planned_ns.
  void beginSleep(uint64_t planned_ns) noexcept {
    begin(planned_ns, nowNs(), processCpuNs());
  }
  bool endSleep() noexcept {
    return end(nowNs(), processCpuNs());
  }
  void begin(uint64_t planned_ns, uint64_t now_ns, uint64_t cpu_ns) noexcept {
    planned_ns_ = planned_ns;
    begin_ns_ = now_ns;
    begin_cpu_ns_ = cpu_ns;
  }
  bool end(uint64_t now_ns, uint64_t cpu_ns) noexcept {
    const uint64_t slept_ns = now_ns - begin_ns_;
    // All cores may have been busy in the planned time.
    const uint64_t most_cpu_ns = planned_ns_ * cores_ + slept_ns / 20;
    if (slept_ns < planned_ns_ + kLeastNs ||
        cpu_ns - begin_cpu_ns_ > most_cpu_ns) {
      return false;
    }
    const uint64_t paused_ns = slept_ns - planned_ns_ / 2;
    ++found_.count;
    found_.total_ns += paused_ns;
    if (paused_ns > found_.longest_ns) {
      found_.longest_ns = paused_ns;
      found_.longest_begin_ns = begin_ns_ + planned_ns_ / 2;
    }
    return true;
  }
  const Pauses& found() const noexcept {
    return found_;
  }

 private:
  // Far more than a thread waits for a core on a crowded machine.
  static constexpr uint64_t kLeastNs = 500'000'000;

  uint64_t cores_;
  uint64_t planned_ns_ = 0;
  uint64_t begin_ns_ = 0;
  uint64_t begin_cpu_ns_ = 0;
  Pauses found_;
};

} // namespace commprof
