// This process's part in comparing the ranks' clocks.
//
// Rank 0 answers (ClockResponder), the others ask (ClockFollower) and record.
// Any thread may call; a forked child begins with neither.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "clock/clock_exchange.h"
#include "clock/clock_track.h"

namespace commprof {

struct ClockServer {
  uint16_t port = 0;
  uint64_t token = 0;
};

class ClockSync {
 public:
  // One per process, never destroyed.
  static ClockSync& instance();

  // Rank 0: answers from now on until the process ends or stop(); ranks that
  // finish later can so compare a last time. A second call returns the server
  // that is open. Throws as ClockResponder does.
  ClockServer serve(
      const std::string& address,
      uint64_t token,
      uint32_t world_size);
  // Another rank: asks until unfollow(). Does nothing while it asks already.
  // Throws as ClockFollower does.
  void follow(const ClockFollowerOptions& options);
  // Compares a last time and ends; at most twice ClockFollower::kBurstNs. Call
  // it before the trace is closed.
  void unfollow();
  // Ends both.
  void stop();

  // What is known of this process's clock; stays where it is. A forked child
  // begins with nothing.
  ClockTrack& track() noexcept {
    return track_;
  }

 private:
  ClockSync();
  static void beforeFork();
  static void afterForkParent();
  static void afterForkChild();

  ClockTrack track_;
  std::mutex mutex_;
  std::unique_ptr<ClockResponder> responder_;
  std::unique_ptr<ClockFollower> follower_;
};

} // namespace commprof
