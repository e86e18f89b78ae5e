// Long garbage collections of the interpreter, noted from its callbacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace commprof {

// Collects the times of collections that took at least kLeastNs. Thread-safe.
class GarbageSpans {
 public:
  // A shorter collection is not noted: a collection of young objects takes
  // microseconds.
  static constexpr uint64_t kLeastNs = 1'000'000;
  // Largest number of collections whose times are kept; later ones still count
  // in the total.
  static constexpr size_t kMostSpans = 4096;

  void begin(uint64_t now_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    begin_ns_ = now_ns;
  }

  // Does nothing if the begin was not seen.
  void end(uint64_t now_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t begin_ns = std::exchange(begin_ns_, 0);
    if (begin_ns == 0 || now_ns - begin_ns < kLeastNs) {
      return;
    }
    total_ns_ += now_ns - begin_ns;
    if (spans_.size() < kMostSpans) {
      spans_.emplace_back(begin_ns, now_ns);
    }
  }

  // Begin and end of each collection that was noted, in their order.
  std::vector<std::pair<uint64_t, uint64_t>> spans() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return spans_;
  }

  uint64_t totalNs() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return total_ns_;
  }

 private:
  mutable std::mutex mutex_;
  uint64_t begin_ns_ = 0; // 0: no collection runs
  uint64_t total_ns_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> spans_;
};

} // namespace commprof
