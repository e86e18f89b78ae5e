// Which pauses of the process count: times in which it did not run at all,
// because it was stopped (SIGSTOP, a debugger, a frozen cgroup), or because its
// machine stood still.
//
// Stops are seen, with their begin and end (process_stops.h). A machine that
// stands still tells its processes nothing, so a long pause is supposed as
// well: a thread that sleeps for a known time wakes up far too late, and after
// the planned time no thread of the process has used processor time. On a
// machine that is merely busy other threads of the process go on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace commprof {

struct Pause {
  uint64_t begin_ns = 0; // CLOCK_MONOTONIC
  uint64_t end_ns = 0;
};

// The long ones.
struct Pauses {
  uint64_t count = 0;
  uint64_t total_ns = 0;
  uint64_t longest_ns = 0;
  uint64_t longest_begin_ns = 0; // CLOCK_MONOTONIC
};

// Not thread-safe.
class PauseWatch {
 public:
  explicit PauseWatch(uint64_t cores = std::thread::hardware_concurrency())
      : cores_(std::max<uint64_t>(cores, 1)) {}

  // A stop that was seen; whether it counts. It replaces a supposed pause.
  bool take(const Pause& seen) noexcept {
    if (seen.end_ns < seen.begin_ns + kShortestNs) {
      return false;
    }
    seen_until_ns_ = std::max(seen_until_ns_, seen.end_ns);
    if (supposed_ && seen.end_ns > supposed_->begin_ns) {
      supposed_.reset();
    }
    count(seen);
    return true;
  }

  // Around a sleep of `planned_ns` at most, which may have held a pause.
  void beginSleep(uint64_t planned_ns) noexcept {
    begin(planned_ns, nowNs(), processCpuNs());
  }
  void endSleep() noexcept {
    end(nowNs(), processCpuNs());
  }
  void begin(uint64_t planned_ns, uint64_t now_ns, uint64_t cpu_ns) noexcept {
    planned_ns_ = planned_ns;
    begin_ns_ = now_ns;
    begin_cpu_ns_ = cpu_ns;
  }
  void end(uint64_t now_ns, uint64_t cpu_ns) noexcept {
    const uint64_t slept_ns = now_ns - begin_ns_;
    // All cores may have been busy in the planned time.
    const uint64_t most_cpu_ns = planned_ns_ * cores_ + slept_ns / 20;
    if (slept_ns >= planned_ns_ + kLongNs &&
        cpu_ns - begin_cpu_ns_ <= most_cpu_ns && seen_until_ns_ <= begin_ns_) {
      supposed_ = Pause{begin_ns_ + planned_ns_ / 2, now_ns};
    }
  }
  // What such a sleep held, once: of that begin and length are known to half of
  // planned_ns. To be asked one sleep later, when a stop would have been seen.
  std::optional<Pause> supposed() noexcept {
    if (supposed_) {
      count(*supposed_);
    }
    return std::exchange(supposed_, std::nullopt);
  }

  static bool isLong(const Pause& pause) noexcept {
    return pause.end_ns - pause.begin_ns >= kLongNs;
  }
  const Pauses& found() const noexcept {
    return found_;
  }

 private:
  // A tool that looks at a process stops it for less again and again.
  static constexpr uint64_t kShortestNs = 1'000'000;
  // Far more than a thread waits for a core on a crowded machine.
  static constexpr uint64_t kLongNs = 500'000'000;

  void count(const Pause& pause) noexcept {
    if (!isLong(pause)) {
      return;
    }
    const uint64_t paused_ns = pause.end_ns - pause.begin_ns;
    ++found_.count;
    found_.total_ns += paused_ns;
    if (paused_ns > found_.longest_ns) {
      found_.longest_ns = paused_ns;
      found_.longest_begin_ns = pause.begin_ns;
    }
  }

  uint64_t cores_;
  uint64_t planned_ns_ = 0;
  uint64_t begin_ns_ = 0;
  uint64_t begin_cpu_ns_ = 0;
  uint64_t seen_until_ns_ = 0;
  std::optional<Pause> supposed_;
  Pauses found_;
};

} // namespace commprof
