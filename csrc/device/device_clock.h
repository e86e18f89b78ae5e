// Where a device's own time stands on CLOCK_MONOTONIC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace commprof {

// One moment on both clocks: on the host's it lies between the two.
struct ClockAnchor {
  int64_t device_ns;
  uint64_t earliest_ns; // before the device was asked to mark it
  uint64_t latest_ns; // when it was seen to be past
};

struct HostTime {
  uint64_t time_ns;
  uint64_t error_ns; // bound; exact only while the drift does not change
};

// Not thread-safe. The rate of the two clocks against each other is that of the
// two anchors that tell it best; where none tells it better, they are taken to
// be equal within the most by which a kernel corrects a clock (adjtimex(2)).
class DeviceClock {
 public:
  static constexpr size_t kMaxAnchors = 64;
  static constexpr double kMaxDrift = 500e-6;

  void add(const ClockAnchor& anchor);
  bool known() const noexcept {
    return !anchors_.empty();
  }
  // By the anchor with the smallest bound there. Call when known().
  HostTime toHost(int64_t device_ns) const;
  // Host nanoseconds in a nanosecond of the device.
  double rate() const noexcept {
    return 1.0 + drift_;
  }

 private:
  void findDrift();

  std::deque<ClockAnchor> anchors_; // the latest
  double drift_ = 0.0;
  double drift_error_ = kMaxDrift;
};

} // namespace commprof
