// What the streams of one device come behind: on which the program's
// collectives run, and which collective each of them waited for last.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/record.h"
#include "torch/device/device_events.h"

namespace commprof {

// In one queue of the communication library one comes after the other.
inline uint64_t queueOf(uint32_t group, uint32_t peer, Op op) noexcept {
  return uint64_t(group) << 32 | (isPointToPoint(op) ? peer + 1ull : 0);
}

// The stream on which each queue's operations run, as found at the first of
// them. A mark put behind one blocks nothing. A stream of ours that waited for
// the operation would: CUDA has eight hardware queues, and what is behind a
// wait in one of them waits too, the program's compute among it. Any thread.
class QueueStreams {
 public:
  static constexpr int kTries = 3; // of a backend that does not tell

  struct Known {
    std::optional<int64_t> stream;
    bool worth_looking = false;
  };
  Known find(uint64_t queue, bool in_callers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Entry& entry = entries_[{queue, in_callers}];
    return {entry.stream, !entry.stream && entry.tries < kTries};
  }
  void looked(uint64_t queue, bool in_callers, std::optional<int64_t> found) {
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
  // By queue, and whether the call asks to run in the caller's own stream.
  std::map<std::pair<uint64_t, bool>, Entry> entries_;
};

// What each stream of the program comes behind. Any thread.
class Behind {
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
  // What is put behind it later is something else.
  void waitedFor(uint64_t op_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(
        last_, [&](const auto& one) { return one.second.op_id == op_id; });
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, CollectiveId> last_; // a device has a few dozen streams
};

} // namespace commprof
