// The ranks in the same position on their hosts. Before an all-reduce between
// hosts, each rank sends every peer a message of 56 bytes that describes the
// operation, so that differences become an error. gloo would abort the process
// if lengths differ, and would add up bytes of different types if types differ.
//
// The message of a small all-reduce also contains the data. gloo's all-reduce
// is then not needed.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tune/shm/team.h"

namespace commprof::tune {

// Used by one thread at a time. No other code may send messages over `across`.
// Collectives of `across` are allowed.
class Peers {
 public:
  // Largest data of a message, in bytes.
  static constexpr size_t kMostPayload = 4096;

  // `across`: the ranks in this position on all hosts, over gloo.
  // `global_rank`: this rank's rank in the job, for error messages.
  Peers(c10::intrusive_ptr<c10d::Backend> across, int global_rank)
      : across_(std::move(across)), global_rank_(global_rank) {}

  c10d::Backend& across() const {
    return *across_;
  }

  // Callable from any thread. gloo's own sends and receives keep the timeout
  // with which their group was made.
  void setTimeout(std::chrono::milliseconds timeout) {
    timeout_ms_.store(timeout.count());
    across_->setTimeout(timeout);
  }

  // Messages of one all-reduce.
  class Messages {
   public:
    // Waits for the messages of all peers. Throws std::runtime_error if two
    // ranks call different all-reduces, or if a rank gave up.
    void wait();
    // Returns the data of every host, including this host. The order is the
    // same on all ranks. Valid only after wait().
    std::vector<const std::byte*> payloads() const;

   private:
    friend class Peers;
    void check() const;
    std::chrono::milliseconds timeout_ = ::kNoTimeout;
    std::vector<at::Tensor> frames_; // by host, including this rank's own
    std::vector<c10::intrusive_ptr<c10d::Work>> receives_;
    std::vector<c10::intrusive_ptr<c10d::Work>> sends_;
  };

  // Sends this rank's next operation and up to kMostPayload bytes of data.
  // Called once for each all-reduce, on all ranks in the same order.
  Messages startExchange(
      const shm::Team::Intent& intent,
      std::span<const std::byte> payload);
  // Called instead of startExchange() if this rank cannot take part. Peers that
  // wait for this rank within a second get an error with `why`: gloo delivers a
  // message only to a peer that waits for it.
  void giveUp(const std::string& why) noexcept;

 private:
  Messages receive(int tag);
  void send(
      const at::Tensor& frame,
      size_t bytes,
      int tag,
      std::vector<c10::intrusive_ptr<c10d::Work>>& works);
  int nextTag();

  const c10::intrusive_ptr<c10d::Backend> across_;
  const int global_rank_;
  std::atomic<int64_t> timeout_ms_{::kNoTimeout.count()};
  // Number of calls of startExchange() and giveUp(), the same on all ranks.
  uint32_t exchanges_ = 0;
};

} // namespace commprof::tune
