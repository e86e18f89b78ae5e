// Order of collectives on the streams of one device: which stream runs a
// queue's operations, and for which collective each stream waited last.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/record.h"
#include "torch/device/device_events.h"

namespace commprof {

// Returns the communication library's queue of an operation; operations of one
// queue run one after the other.
inline uint64_t queueOf(uint32_t group, uint32_t peer, Op op) noexcept {
  return uint64_t(group) << 32 | (isPointToPoint(op) ? peer + 1ull : 0);
}

// The stream on which each queue's operations run. An operation is marked on
// its own stream, because a mark on another stream would need a wait. Such a
// wait can block other streams: all streams share CUDA's eight hardware queues.
// Thread-safe.
class QueueStreams {
 public:
  // Number of searches without a result after which the search ends.
  static constexpr int kTries = 3;

  struct Known {
    std::optional<int64_t> stream;
    bool should_search = false;
  };
  Known find(uint64_t queue, bool in_callers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Entry& entry = entries_[{queue, in_callers}];
    return {entry.stream, !entry.stream && entry.tries < kTries};
  }
  void noteSearch(
      uint64_t queue,
      bool in_callers,
      std::optional<int64_t> found) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[{queue, in_callers}];
    entry.stream = found;
    ++entry.tries;
  }

 private:
  struct Entry {
    std::optional<int64_t> stream;
    int tries = 0;
  };
  std::mutex mutex_;
  // Keyed by queue, and whether the call asks to run in the caller's own
  // stream.
  std::map<std::pair<uint64_t, bool>, Entry> entries_;
};

// The collective that each stream of the program waited for last. Thread-safe.
class LastAwaited {
 public:
  void set(int64_t stream, CollectiveId behind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    last_[stream] = behind;
  }
  CollectiveId of(int64_t stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = last_.find(stream);
    return found == last_.end() ? CollectiveId{} : found->second;
  }
  // Forgets the collective on all streams, once a stream has waited for it.
  void waitedFor(uint64_t op_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(
        last_, [&](const auto& one) { return one.second.op_id == op_id; });
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, CollectiveId> last_; // by stream; a device has few streams
};

} // namespace commprof
