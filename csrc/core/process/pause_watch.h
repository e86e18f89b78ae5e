// Finds pauses of the process, in which none of its threads ran. Either the
// process was stopped (SIGSTOP, a debugger, a frozen cgroup), or its machine
// was suspended.
//
// Stops are observed (process_stops.h). A suspended machine does not notify its
// processes, so a long pause is also inferred: a thread wakes up far too late
// from a sleep, and the process has used hardly any CPU time after the planned
// end of this sleep. On a busy machine, other threads of the process would have
// run.
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

// Number and lengths of the long pauses.
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

  // Adds an observed stop. The stop replaces a pause that was inferred from the
  // same time. If the stop is shorter than kShortestNs, does nothing and
  // returns false.
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

  // Call these before and after a sleep of at most `planned_ns`.
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
    // All cores may have been in use during the planned time.
    const uint64_t most_cpu_ns = planned_ns_ * cores_ + slept_ns / 20;
    if (slept_ns >= planned_ns_ + kLongNs &&
        cpu_ns - begin_cpu_ns_ <= most_cpu_ns && seen_until_ns_ <= begin_ns_) {
      supposed_ = Pause{begin_ns_ + planned_ns_ / 2, now_ns};
    }
  }
  // Returns and forgets the pause that was inferred from a sleep. The begin may
  // be wrong by half of `planned_ns`. Call it one sleep later: if the pause was
  // a stop, the stop has then been observed.
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
  // A shorter stop is ignored, because a tool that inspects a process stops it
  // repeatedly for short times.
  static constexpr uint64_t kShortestNs = 1'000'000;
  // Far longer than a thread waits for a core on a busy machine.
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
