#include "device/clock_keeper.h"

#include <cmath>
#include <utility>

#include "base/clock.h"

namespace commprof {

namespace {

// An event on an idle stream is seen to be done some 10 us later.
constexpr uint64_t kLongestAskNs = 50'000;
constexpr int kAsks = 3; // the quickest answer counts

uint64_t width(const ClockAnchor& anchor) {
  return anchor.latest_ns - anchor.earliest_ns;
}

} // namespace

ClockKeeper::ClockKeeper(Device& device)
    : device_(device),
      stream_(device.newStream()),
      asked_(device.newEvent()),
      reference_(device.newEvent()) {}

std::optional<ClockAnchor> ClockKeeper::keep() {
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
