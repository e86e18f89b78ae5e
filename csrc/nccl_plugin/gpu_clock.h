// Converts a GPU's globaltimer to CLOCK_MONOTONIC.
//
// A thread of NCCL sees a time of the GPU only when it polls. So the host's
// time minus the GPU's time is the offset of the clocks plus a delay, which is
// never negative. The offset is estimated by the highest line below all such
// differences of the last seconds: an edge of their lower convex hull (Moon,
// Skelly and Towsley, INFOCOM 1999). A converted time is too late by the
// shortest of these delays.
#pragma once

#include <array>
#include <cstdint>

namespace commprof::nccl {

// Not thread-safe.
class GpuClock {
 public:
  // Takes a reading of the GPU's clock, seen at `host_ns` of the host's.
  // Returns false if the reading cannot be converted: it is not a time of any
  // clock, or the GPU's clock seems to have been set forward. Once enough
  // readings confirm that, readings can be converted again.
  bool add(uint64_t host_ns, uint64_t gpu_ns) noexcept;
  // Requires an earlier call of add().
  uint64_t toHost(uint64_t gpu_ns) const noexcept;

  // The window holds the lowest difference of each bucket of time. kBuckets
  // buckets of 2**kBucketBits ns are 9 s in all.
  static constexpr int kBuckets = 64;
  static constexpr int kBucketBits = 27;
  // A difference this far below the line does not come from a shorter delay. A
  // difference this far above the line seldom comes from a longer delay. After
  // kStrangeInARow such differences, the GPU's clock counts as set anew. If
  // they are above the line, kLateNs must have passed too, because a thread of
  // NCCL may have to wait for a core.
  static constexpr int64_t kStrangeNs = 5'000'000;
  static constexpr int kStrangeInARow = 64;
  static constexpr int64_t kLateNs = 1'000'000'000;
  // A hull that spans less time than this tells nothing about the drift.
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
  int strange_ = 0; // number of strange differences in a row on that side
  uint64_t strange_since_ns_ = 0; // host's time of the first of them
  // The line: a point of it, and its slope.
  Point through_{0, 0};
  double drift_ = 0.0; // change of the difference per GPU time
};

} // namespace commprof::nccl
