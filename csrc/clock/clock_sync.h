// Compares the clocks of the ranks.
//
// Rank 0 answers (ClockResponder); the other ranks ask (ClockFollower) and
// record the answers. Any thread may call. A forked child begins without a
// responder and without a follower.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "clock/clock_track.h"
#include "clock/udp_socket.h"

namespace commprof {

// A thread that answers the questions of this job's ranks and ignores all other
// datagrams. It never waits for a rank, and keeps no state about ranks.
class ClockResponder {
 public:
  // Listens on a numeric address, any free port. Throws std::system_error or
  // std::invalid_argument.
  ClockResponder(
      const std::string& address,
      uint64_t token,
      uint32_t world_size);
  ~ClockResponder();
  ClockResponder(const ClockResponder&) = delete;
  ClockResponder& operator=(const ClockResponder&) = delete;

  uint16_t port() const noexcept {
    return socket_.port();
  }
  uint64_t token() const noexcept {
    return token_;
  }
  // For a forked child, in which the thread does not exist: closes the sockets.
  // The object must then be leaked.
  void abandon() noexcept;

 private:
  void loop() noexcept;
  void answerAll() noexcept;

  UdpSocket socket_;
  const uint64_t token_;
  const uint32_t world_size_;
  int stop_fd_; // readable once the thread must end
  std::unique_ptr<std::thread> thread_;
};

struct ClockFollowerOptions {
  std::string address; // rank 0's numeric address
  uint16_t port = 0;
  uint64_t token = 0;
  uint32_t rank = 0;
  uint32_t interval_ms = 10000; // longest time between two bursts
  uint32_t pings = 64; // number of questions in a burst
};

// A thread that asks rank 0 for its time, in bursts of questions. The time
// between bursts grows from a second to `interval_ms`. Of each burst, the
// exchange with the shortest round trip becomes a clock record and goes into
// `track`, which must outlive the follower. While rank 0 is unreachable, the
// follower asks every second.
class ClockFollower {
 public:
  // Throws std::system_error or std::invalid_argument.
  ClockFollower(const ClockFollowerOptions& options, ClockTrack& track);
  // If rank 0 answered the latest burst, sends one more burst. Takes at most
  // twice kBurstNs.
  ~ClockFollower();
  ClockFollower(const ClockFollower&) = delete;
  ClockFollower& operator=(const ClockFollower&) = delete;

  // Like ClockResponder::abandon().
  void abandon() noexcept;

  // A burst ends after this time at the latest.
  static constexpr uint64_t kBurstNs = 400'000'000;

 private:
  void loop() noexcept;
  bool burst(bool last) noexcept;
  ClockSample ask(uint64_t give_up_ns) noexcept;
  bool isAnswer(const ClockMessage& message) const noexcept;
  // Returns false once the thread must end.
  bool sleepFor(uint64_t duration_ns) noexcept;

  const ClockFollowerOptions options_;
  ClockTrack& track_;
  UdpSocket socket_;
  uint64_t number_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false; // guarded by mutex_
  std::unique_ptr<std::thread> thread_;
};

struct ClockServer {
  uint16_t port = 0;
  uint64_t token = 0;
};

class ClockSync {
 public:
  // One per process, never destroyed.
  static ClockSync& instance();

  // For rank 0: answers until stop() or the end of the process, because ranks
  // that finish later make a last comparison. A second call returns the running
  // server. Throws like the constructor of ClockResponder.
  ClockServer serve(
      const std::string& address,
      uint64_t token,
      uint32_t world_size);
  // For the other ranks: asks until unfollow(). No effect if this process
  // already asks. Throws like the constructor of ClockFollower.
  void follow(const ClockFollowerOptions& options);
  // Compares clocks a last time, then stops asking. Takes at most twice
  // ClockFollower::kBurstNs. Call it before the trace is closed.
  void unfollow();
  void stop();

  // Returns the comparisons with rank 0's clock. The object's address never
  // changes. A forked child begins with an empty track.
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
