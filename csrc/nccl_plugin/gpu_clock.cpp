#include "nccl_plugin/gpu_clock.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace commprof::nccl {

// False if NCCL read the time from memory that was not written.
static bool isTime(uint64_t ns) noexcept {
  return ns < (uint64_t(1) << 62);
}

bool GpuClock::add(uint64_t host_ns, uint64_t gpu_ns) noexcept {
  if (!isTime(gpu_ns)) {
    return false;
  }
  const auto gpu = int64_t(gpu_ns);
  const int64_t difference = int64_t(host_ns) - gpu;
  const uint64_t bucket = host_ns >> kBucketBits;
  if (points_ == 0) {
    begin(gpu, difference, bucket);
    return true;
  }
  const int64_t below = lineAt(gpu) - difference;
  const int side = std::abs(below) <= kStrangeNs ? 0 : below > 0 ? 1 : -1;
  if (std::exchange(side_, side) != side) {
    strange_ = 0;
    strange_since_ns_ = host_ns;
  }
  const bool lasts = side > 0 || int64_t(host_ns - strange_since_ns_) > kLateNs;
  near_ += side == 0 ? 1 : 0;
  // If only few differences were near the line, all of these may come from long
  // delays. Then a single difference far below the line begins a new line.
  const bool corrects = side > 0 && near_ < uint64_t(kStrangeInARow);
  if (corrects || (side != 0 && ++strange_ >= kStrangeInARow && lasts)) {
    begin(gpu, difference, bucket);
    return true;
  }
  if (side > 0) {
    return false;
  }
  if (below > 0) {
    through_.difference_ns -= below;
  }
  // Threads may report times out of order. A time of an earlier bucket counts
  // in the newest bucket.
  if (bucket > newest_) {
    newest_ = bucket;
    next_ = (next_ + 1) % kBuckets;
    window_[next_] = {gpu, difference};
    points_ = std::min(points_ + 1, kBuckets);
    fit();
  } else if (difference < window_[next_].difference_ns) {
    window_[next_] = {gpu, difference};
  }
  return true;
}

uint64_t GpuClock::toHost(uint64_t gpu_ns) const noexcept {
  return isTime(gpu_ns) ? uint64_t(int64_t(gpu_ns) + lineAt(int64_t(gpu_ns)))
                        : 0;
}

int64_t GpuClock::lineAt(int64_t gpu_ns) const noexcept {
  // The sum is relative to a point: a double cannot hold nanoseconds since 1970
  // exactly.
  return through_.difference_ns +
      std::llround(drift_ * double(gpu_ns - through_.gpu_ns));
}

void GpuClock::begin(
    int64_t gpu_ns,
    int64_t difference_ns,
    uint64_t bucket) noexcept {
  newest_ = bucket;
  next_ = 0;
  points_ = 1;
  near_ = 0;
  side_ = 0;
  window_[0] = through_ = {gpu_ns, difference_ns};
  drift_ = 0.0;
}

// Finds the edge of the lower hull over the middle of the window. Called once
// per bucket, when the newest bucket has only one point.
void GpuClock::fit() noexcept {
  std::array<Point, kBuckets> sorted{};
  const int count = points_ - 1;
  for (int i = 0; i < count; ++i) {
    sorted[i] = window_[(next_ + kBuckets - 1 - i) % kBuckets];
  }
  std::sort(
      sorted.begin(),
      sorted.begin() + count,
      [](const Point& a, const Point& b) { return a.gpu_ns < b.gpu_ns; });
  std::array<Point, kBuckets> hull{};
  int size = 0;
  double middle = 0.0;
  for (int i = 0; i < count; ++i) {
    const auto above = [&](const Point& a, const Point& b, const Point& c) {
      return double(b.difference_ns - a.difference_ns) *
          double(c.gpu_ns - a.gpu_ns) >=
          double(c.difference_ns - a.difference_ns) *
          double(b.gpu_ns - a.gpu_ns);
    };
    while (size >= 2 && above(hull[size - 2], hull[size - 1], sorted[i])) {
      --size;
    }
    hull[size++] = sorted[i];
    middle += double(sorted[i].gpu_ns - sorted[0].gpu_ns) / count;
  }
  const auto middle_ns = sorted[0].gpu_ns + int64_t(middle);
  int edge = 0;
  while (edge + 2 < size && hull[edge + 1].gpu_ns < middle_ns) {
    ++edge;
  }
  drift_ = 0.0;
  if (size >= 2 && hull[size - 1].gpu_ns - hull[0].gpu_ns >= kLeastEdgeNs) {
    const Point& a = hull[edge];
    const Point& b = hull[edge + 1];
    const double drift =
        double(b.difference_ns - a.difference_ns) / double(b.gpu_ns - a.gpu_ns);
    drift_ = std::clamp(drift, -kMaxDrift, kMaxDrift);
  }
  // The highest line with this drift that lies below all points.
  through_ = window_[next_];
  int64_t excess = 0;
  for (int i = 0; i < points_; ++i) {
    const Point& point = window_[(next_ + kBuckets - i) % kBuckets];
    excess = std::max(excess, lineAt(point.gpu_ns) - point.difference_ns);
  }
  through_.difference_ns -= excess;
}

} // namespace commprof::nccl
