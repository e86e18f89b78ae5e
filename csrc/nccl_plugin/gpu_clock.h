// Converts a GPU's globaltimer to CLOCK_MONOTONIC.
//
// NCCL's threads see a time of the GPU only when they poll. So the host's time
// minus the GPU's time is the offset of the clocks plus a delay, which is never
// negative. The offset is estimated by the highest line below all such
// differences of the last seconds. This line is an edge of their lower convex
// hull (Moon, Skelly and Towsley, INFOCOM 1999). Converted times are too late
// by the shortest delay.
#pragma once

#include <array>
#include <cstdint>

namespace commprof::nccl {

// Not thread-safe.
class GpuClock {
 public:
  // Takes a reading of the GPU's clock, which the host saw at `host_ns`.
  // Returns false if the reading cannot be converted: it is no valid time, or
  // the GPU's clock seems to have been set forward. Once enough readings
  // confirm this, readings can be converted again.
  bool add(uint64_t host_ns, uint64_t gpu_ns) noexcept;
  // Requires an earlier call of add().
  uint64_t toHost(uint64_t gpu_ns) const noexcept;

  // The window holds the lowest difference of each bucket. A bucket is
  // 2**kBucketBits ns long. All buckets together are 9 s long.
  static constexpr int kBuckets = 64;
  static constexpr int kBucketBits = 27;
  // A difference is strange if it is farther from the line than this. After
  // kStrangeInARow strange differences on the same side, the GPU's clock counts
  // as set anew. For differences above the line, kLateNs must have passed too,
  // because a thread of NCCL may have to wait for a core.
  static constexpr int64_t kStrangeNs = 5'000'000;
  static constexpr int kStrangeInARow = 64;
  static constexpr int64_t kLateNs = 1'000'000'000;
  // A hull that spans less time than this is too short to estimate the drift.
  static constexpr int64_t kLeastEdgeNs = 1'000'000'000;
  // The most by which a kernel corrects a clock (adjtimex(2)).
  static constexpr double kMaxDrift = 500e-6;

 private:
  struct Point {
    int64_t gpu_ns;
    int64_t difference_ns;
  };
  int64_t lineAt(int64_t gpu_ns) const noexcept;
  void begin(int64_t gpu_ns, int64_t difference_ns, uint64_t bucket) noexcept;
  void fit() noexcept;

  std::array<Point, kBuckets> window_{}; // a ring, in order of time
  uint64_t newest_ = 0; // bucket of the newest point
  int points_ = 0;
  int next_ = 0; // index of the newest point in the ring
  // Number of differences since begin() that were not strange.
  uint64_t near_ = 0;
  // Side of the last difference: 1: strange and below the line, -1: strange and
  // above the line, 0: not strange.
  int side_ = 0;
  int strange_ = 0; // number of consecutive strange differences on this side
  uint64_t strange_since_ns_ = 0; // host's time of the first such difference
  // The line: a point of it, and its slope.
  Point through_{0, 0};
  double drift_ = 0.0; // change of the difference per GPU time
};

} // namespace commprof::nccl
