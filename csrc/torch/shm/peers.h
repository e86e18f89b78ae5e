// The ranks of equal place on their hosts, which tell each other what they are
// about to do before they do it.
//
// gloo ends the process where the two ends of an all-reduce differ in length,
// and adds up bytes of different types where they do not. So each all-reduce
// between hosts begins with a message of 56 bytes to every peer. A
// message may be shorter than what its receiver has room for; so the data of a
// small all-reduce travels in it as well, which saves gloo's ring and its
// second journey.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shm/team.h"

namespace commprof {

// Used by one thread at a time. Messages of `across` must be this object's
// alone; its collectives may be anybody's.
class Peers {
 public:
  // That a message can carry besides what it says.
  static constexpr size_t kMostPayload = 4096;

  // `across`: the ranks of this place on all hosts, over gloo. `global_rank`:
  // what to call this one in messages.
  Peers(c10::intrusive_ptr<c10d::Backend> across, int global_rank)
      : across_(std::move(across)), global_rank_(global_rank) {}

  c10d::Backend& across() const {
    return *across_;
  }

  // Any thread. gloo's messages keep the one that their group was made with.
  void setTimeout(std::chrono::milliseconds timeout) {
    timeout_ms_.store(timeout.count());
    across_->setTimeout(timeout);
  }

  // Messages of one all-reduce.
  class Told {
   public:
    // Returns when all have told what they do. Throws std::runtime_error naming
    // two ranks where they do not do the same, and who gave up, and why.
    void wait();
    // What each host sent besides, its own too, in the same order on all ranks.
    // After wait().
    std::vector<const std::byte*> payloads() const;

   private:
    friend class Peers;
    void check() const;
    std::chrono::milliseconds timeout_ = ::kNoTimeout;
    std::vector<at::Tensor> frames_; // by host, this rank's own too
    std::vector<c10::intrusive_ptr<c10d::Work>> receives_;
    std::vector<c10::intrusive_ptr<c10d::Work>> sends_;
  };

  // Sends what this rank is about to do, and up to kMostPayload bytes. Call it
  // once for each all-reduce, on all ranks in the same order.
  Told tell(
      const shm::Team::Intent& intent,
      std::span<const std::byte> payload);
  // In the place of tell(): this rank cannot do it. The others' wait() throws,
  // if they come to it within a second: gloo delivers nothing before.
  void giveUp(const std::string& why) noexcept;

 private:
  Told receive(int tag);
  void send(
      const at::Tensor& frame,
      size_t bytes,
      int tag,
      std::vector<c10::intrusive_ptr<c10d::Work>>& works);
  int nextTag();

  const c10::intrusive_ptr<c10d::Backend> across_;
  const int global_rank_;
  std::atomic<int64_t> timeout_ms_{::kNoTimeout.count()};
  uint32_t told_ = 0; // the same on all ranks
};

} // namespace commprof
