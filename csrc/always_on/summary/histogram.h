// A mergeable histogram of nanoseconds, with bounded memory. Its quantiles
// (commprof/trace/summary.py) are within 1 % of the exact ones.
//
// The buckets are those of HdrHistogram (G. Tene, hdrhistogram.org): each power
// of two is divided into 64 buckets of equal width. A value differs from the
// middle of its bucket by at most 1/128 (0.8 %).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace commprof {

// Not thread-safe. add() and merge() may throw std::bad_alloc.
class Histogram {
 public:
  static constexpr uint32_t kPerOctave = 64;
  static constexpr uint32_t kOctaves = 37; // the first one holds 0 to 63 ns
  static constexpr uint32_t kBuckets = kPerOctave * kOctaves;
  // 73 minutes. Longer values count in the last bucket; the sum and the maximum
  // stay exact.
  static constexpr uint64_t kLargestNs = (uint64_t(1) << 42) - 1;

  static uint32_t bucketOf(uint64_t ns) noexcept;

  void add(uint64_t ns);
  // The result does not depend on the order or grouping of merges.
  void merge(const Histogram& other);

  uint64_t count() const noexcept {
    return count_;
  }
  uint64_t sum() const noexcept {
    return sum_;
  }
  uint64_t min() const noexcept { // 0 without values
    return count_ == 0 ? 0 : min_;
  }
  uint64_t max() const noexcept {
    return max_;
  }

  // Appends {"count": .., "sum": .., "min": .., "max": .., "buckets": [..]}.
  // "buckets" has two numbers for each bucket that is not empty: its index
  // minus the index of the previous such bucket, and its count.
  void appendJson(std::string& out) const;

 private:
  using Octave = std::array<uint64_t, kPerOctave>;
  uint64_t& at(uint32_t bucket);
  template <class Visit>
  void forEach(Visit&& visit) const;

  uint64_t count_ = 0;
  uint64_t sum_ = 0;
  uint64_t min_ = UINT64_MAX;
  uint64_t max_ = 0;
  std::array<std::unique_ptr<Octave>, kOctaves> octaves_; // null: no values
};

} // namespace commprof
