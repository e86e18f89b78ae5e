// Records long garbage collections of the Python interpreter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace commprof {

// Stores the times of collections that took at least kLeastNs. Thread-safe.
class GarbageSpans {
 public:
  // Collections of young objects take only microseconds, and are not stored.
  static constexpr uint64_t kLeastNs = 1'000'000;
  // Largest number of stored collections. Later collections count only in the
  // total.
  static constexpr size_t kMostSpans = 4096;

  void begin(uint64_t now_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    begin_ns_ = now_ns;
  }

  // Does nothing unless begin() was called before.
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

  // Returns begin and end of each stored collection, in order of time.
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
  uint64_t begin_ns_ = 0; // 0: no collection is running
  uint64_t total_ns_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> spans_;
};

} // namespace commprof
