// What the streams of one device come behind: which of ours watches which
// collectives, and which collective each of the program's waited for last.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "core/device/device.h"
#include "torch/device/device_events.h"

namespace commprof {

// Streams that wait for collectives, to be marked when they are done: one for
// each queue of the communication library, in which one comes after the other.
// Any thread.
class Watchers {
 public:
  explicit Watchers(Device& device) : device_(device) {}

  int64_t streamFor(const IssuedOp& issued) {
    const uint64_t peer = isPointToPoint(issued.op) ? issued.peer + 1ull : 0;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [place, is_new] =
        streams_.try_emplace(uint64_t(issued.group) << 32 | peer, 0);
    if (is_new) {
      place->second = device_.newStream();
    }
    return place->second;
  }

 private:
  Device& device_;
  std::mutex mutex_;
  std::map<uint64_t, int64_t> streams_;
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
