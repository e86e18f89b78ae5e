// Converts times of a device's clock to CLOCK_MONOTONIC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "device/device.h"

namespace commprof {

// One moment on both clocks. Only bounds of its host time are known.
struct ClockAnchor {
  int64_t device_ns;
  // Host time before the device was asked to record the moment.
  uint64_t earliest_ns;
  uint64_t latest_ns; // host time after the moment
};

struct HostTime {
  uint64_t time_ns;
  uint64_t error_ns; // error bound; valid only while the drift does not change
};

// Not thread-safe. The two anchors that give the smallest error determine the
// relative rate of the clocks. Without such anchors, the rates count as equal
// within kMaxDrift, the largest correction that a kernel makes to a clock
// (adjtimex(2)).
class DeviceClock {
 public:
  static constexpr size_t kMaxAnchors = 64;
  static constexpr double kMaxDrift = 500e-6;

  void add(const ClockAnchor& anchor);
  bool known() const noexcept {
    return !anchors_.empty();
  }
  // Converts a time of the device, by the anchor with the smallest error bound.
  // Call it only if known() is true.
  HostTime toHost(int64_t device_ns) const;
  // Host nanoseconds per device nanosecond.
  double rate() const noexcept {
    return 1.0 + drift_;
  }

 private:
  void findDrift();

  std::deque<ClockAnchor> anchors_; // the latest anchors
  double drift_ = 0.0;
  double drift_error_ = kMaxDrift;
};

// Compares a device's clock with the host's clock by events on an idle stream.
// Not thread-safe.
class ClockKeeper {
 public:
  static constexpr uint64_t kEveryNs = 1'000'000'000;
  static constexpr uint64_t kPatienceNs = 1'000'000'000;

  explicit ClockKeeper(Device& device);

  // Compares the clocks if that is due: once a second, for some 50 us. Does not
  // wait for a busy device. Returns the anchor if one was added.
  //
  // The first anchor must be exact, because times must not jump at the next
  // anchor. So for up to kPatienceNs, only an anchor with a small error bound
  // is accepted as the first anchor, unless `hurried` is true.
  std::optional<ClockAnchor> keep(bool hurried = false);

  bool known() const noexcept {
    return clock_.known();
  }
  // Converts the time of an event that is done. Call it only if known() is
  // true.
  HostTime toHost(const Device::Event& event) const;
  double rate() const noexcept {
    return clock_.rate();
  }

 private:
  std::optional<ClockAnchor> ask();

  Device& device_;
  const int64_t stream_;
  DeviceClock clock_;
  std::unique_ptr<Device::Event> asked_;
  uint64_t asked_ns_ = 0; // 0: no answer is awaited
  uint64_t next_ns_ = 0;
  // Candidate for the first anchor: the one with the smallest error so far.
  std::optional<ClockAnchor> first_;
  uint64_t first_ns_ = 0; // begin of the search for the first anchor
  // The last event that was seen to be done. Times of other events are measured
  // from it.
  std::unique_ptr<Device::Event> reference_;
  int64_t reference_ns_ = 0;
  bool answered_ = false;
};

} // namespace commprof
