#include "device/device_clock.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"

namespace commprof {

namespace {

// Returns the error bound of the host time, which is estimated as the middle of
// the anchor's bounds.
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
  // Relative to the anchor, because a double cannot hold all nanoseconds since
  // boot exactly.
  const double since =
      halfWidth(*best) + double(device_ns - best->device_ns) * rate();
  return {
      best->earliest_ns + uint64_t(int64_t(std::llround(since))),
      uint64_t(std::ceil(bound(*best)))};
}

namespace {

// Longest time that the host waits for an event on an idle stream. Usually the
// event is done some 10 us after it was recorded.
constexpr uint64_t kLongestAskNs = 50'000;
constexpr uint64_t kNarrowNs = 2 * kLongestAskNs;
constexpr int kAsks = 3; // the quickest answer is used

uint64_t width(const ClockAnchor& anchor) {
  return anchor.latest_ns - anchor.earliest_ns;
}

} // namespace

ClockKeeper::ClockKeeper(Device& device)
    : device_(device),
      stream_(device.newStream()),
      asked_(device.newEvent()),
      reference_(device.newEvent()) {}

std::optional<ClockAnchor> ClockKeeper::keep(bool hurried) {
  const uint64_t now_ns = nowNs();
  if (now_ns < next_ns_) {
    return std::nullopt;
  }
  std::optional<ClockAnchor> best;
  for (int i = 0; i < kAsks; ++i) {
    const std::optional<ClockAnchor> anchor = ask();
    if (!anchor) {
      break;
    }
    if (!best || width(*anchor) < width(*best)) {
      best = anchor;
    }
  }
  if (!known()) {
    first_ns_ = first_ns_ == 0 ? now_ns : first_ns_;
    if (best && (!first_ || width(*best) < width(*first_))) {
      first_ = best;
    }
    const bool enough = first_ &&
        (hurried || width(*first_) <= kNarrowNs ||
         now_ns - first_ns_ >= kPatienceNs);
    best = enough ? std::exchange(first_, std::nullopt) : std::nullopt;
  }
  if (best) {
    next_ns_ = now_ns + kEveryNs;
    clock_.add(*best);
  }
  return best;
}

std::optional<ClockAnchor> ClockKeeper::ask() {
  const bool fresh = asked_ns_ == 0;
  if (fresh) {
    const uint64_t now_ns = nowNs();
    device_.record(*asked_, stream_);
    asked_ns_ = now_ns;
  }
  ClockAnchor anchor{0, asked_ns_, 0};
  bool done = false;
  do {
    done = device_.done(*asked_);
    anchor.latest_ns = nowNs();
  } while (!done && fresh && width(anchor) < kLongestAskNs);
  if (!done) {
    return std::nullopt;
  }
  asked_ns_ = 0;
  if (answered_) {
    reference_ns_ += std::llround(device_.elapsedNs(*reference_, *asked_));
  }
  answered_ = true;
  anchor.device_ns = reference_ns_;
  std::swap(reference_, asked_);
  return anchor;
}

HostTime ClockKeeper::toHost(const Device::Event& event) const {
  return clock_.toHost(
      reference_ns_ + std::llround(device_.elapsedNs(*reference_, event)));
}

} // namespace commprof
