#include "device/device_clock.h"

#include <algorithm>
#include <cmath>

namespace commprof {

namespace {

// Also how far its middle, the best guess, lies behind its earliest.
double halfWidth(const ClockAnchor& anchor) {
  return double(anchor.latest_ns - anchor.earliest_ns) / 2;
}

} // namespace

void DeviceClock::add(const ClockAnchor& anchor) {
  anchors_.push_back(anchor);
  if (anchors_.size() > kMaxAnchors) {
    anchors_.pop_front();
  }
  findDrift();
}

void DeviceClock::findDrift() {
  drift_ = 0.0;
  drift_error_ = kMaxDrift;
  for (size_t i = 0; i < anchors_.size(); ++i) {
    for (size_t j = i + 1; j < anchors_.size(); ++j) {
      const ClockAnchor& a = anchors_[i];
      const ClockAnchor& b = anchors_[j];
      const auto device = double(b.device_ns - a.device_ns);
      const double error = (halfWidth(a) + halfWidth(b)) / device;
      if (device > 0 && error < drift_error_) {
        const double host = double(int64_t(b.earliest_ns - a.earliest_ns)) +
            halfWidth(b) - halfWidth(a);
        drift_ = host / device - 1.0;
        drift_error_ = error;
      }
    }
  }
}

HostTime DeviceClock::toHost(int64_t device_ns) const {
  const auto bound = [this, device_ns](const ClockAnchor& anchor) {
    const auto distance = double(device_ns - anchor.device_ns);
    return halfWidth(anchor) + drift_error_ * std::abs(distance);
  };
  const auto best = std::min_element(
      anchors_.begin(),
      anchors_.end(),
      [&bound](const ClockAnchor& a, const ClockAnchor& b) {
        return bound(a) < bound(b);
      });
  // Around the anchor: a double has no room for nanoseconds since boot.
  const double since =
      halfWidth(*best) + double(device_ns - best->device_ns) * rate();
  return {
      best->earliest_ns + uint64_t(int64_t(std::llround(since))),
      uint64_t(std::ceil(bound(*best)))};
}

} // namespace commprof
