#include "always_on/exposed_wait.h"

#include <algorithm>
#include <cmath>

namespace commprof {

namespace {

// Of a stretch in which `waited_ns` were waited, what lies before a time. All
// relative to the same moment.
double before(double begin, double end, double waited_ns, double time) {
  const double length = std::max(1.0, end - begin);
  return std::clamp(time - begin, 0.0, length) / length * waited_ns;
}

// The copy speed with which the replay waits for `blocked_ns`.
double copyNsPerByte(
    const std::vector<double>& end_ns,
    const std::vector<double>& copied_bytes,
    double blocked_ns,
    double slowest) {
  double speed = 0;
  for (size_t i = 0; i < end_ns.size(); ++i) {
    const double early_ns = end_ns[i] - blocked_ns;
    if (early_ns > 0) {
      const double limit =
          copied_bytes[i] > 0 ? early_ns / copied_bytes[i] : slowest;
      speed = std::max(speed, limit);
    }
  }
  return std::min(slowest, speed);
}

} // namespace

uint64_t waitedBefore(const Exposure& exposure, uint64_t arrival_ns) noexcept {
  const auto origin = int64_t(exposure.begin_ns);
  return uint64_t(
      std::llround(before(
          0,
          double(int64_t(exposure.end_ns) - origin),
          double(exposure.waited_ns),
          double(int64_t(arrival_ns) - origin))));
}

const BucketTimes& decidingBucket(
    const std::vector<BucketTimes>& buckets) noexcept {
  const BucketTimes* deciding = &buckets.front();
  uint64_t wire_busy_until_ns = 0;
  for (const BucketTimes& bucket : buckets) {
    if (bucket.last_arrival_ns >= wire_busy_until_ns) {
      deciding = &bucket;
    }
    wire_busy_until_ns = std::max(wire_busy_until_ns, bucket.end_ns);
  }
  return *deciding;
}

uint64_t waitedBefore(
    const Exposure& finalisation,
    const std::vector<BucketTimes>& buckets,
    uint64_t arrival_ns) {
  const auto relative = [&](uint64_t time_ns) {
    return double(int64_t(time_ns) - int64_t(finalisation.begin_ns));
  };
  const double window_ns = relative(finalisation.end_ns);
  const double arrival = relative(arrival_ns);
  const auto blocked_ns = double(finalisation.waited_ns);
  std::vector<double> end_ns;
  std::vector<double> copied_bytes;
  double size_bytes = 0;
  for (const BucketTimes& bucket : buckets) {
    end_ns.push_back(std::min(relative(bucket.end_ns), window_ns));
    copied_bytes.push_back(size_bytes);
    size_bytes += bucket.size_bytes;
  }
  const double speed = copyNsPerByte(
      end_ns, copied_bytes, blocked_ns, window_ns / std::max(1.0, size_bytes));
  double all_ns = 0; // that the replay waits
  for (size_t i = 0; i < end_ns.size(); ++i) {
    all_ns = std::max(all_ns, end_ns[i] - speed * copied_bytes[i]);
  }
  const double scale = all_ns > 0 ? std::min(1.0, blocked_ns / all_ns) : 1.0;
  double reached_ns = 0;
  double wait_ns = 0;
  for (size_t i = 0; i < end_ns.size(); ++i) {
    const double stretch = end_ns[i] - speed * copied_bytes[i] - reached_ns;
    if (stretch > 0) {
      reached_ns += stretch;
      wait_ns +=
          before(end_ns[i] - stretch, end_ns[i], stretch * scale, arrival);
    }
  }
  const double rest_ns = blocked_ns - reached_ns * scale;
  if (rest_ns > 0.5) {
    wait_ns += before(reached_ns, window_ns, rest_ns, arrival);
  }
  return uint64_t(std::llround(wait_ns));
}

} // namespace commprof
