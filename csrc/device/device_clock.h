// Relation of a device's own time to CLOCK_MONOTONIC, compared repeatedly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "device/device.h"

namespace commprof {

// One moment on both clocks. On the host's clock, it is known to lie between
// two times.
struct ClockAnchor {
  int64_t device_ns;
  // Host time before the device was asked to mark the moment.
  uint64_t earliest_ns;
  uint64_t latest_ns; // host time at which the moment was seen to be past
};

struct HostTime {
  uint64_t time_ns;
  uint64_t error_ns; // error bound; valid only while the drift does not change
};

// Not thread-safe. The relative rate of the clocks is computed from the two
// anchors that determine it best. Without better knowledge, the rates are
// assumed to be equal within the largest correction that a kernel makes to a
// clock (adjtimex(2)).
class DeviceClock {
 public:
  static constexpr size_t kMaxAnchors = 64;
  static constexpr double kMaxDrift = 500e-6;

  void add(const ClockAnchor& anchor);
  bool known() const noexcept {
    return !anchors_.empty();
  }
  // Converts by the anchor with the smallest error bound. Call it only if
  // known() is true.
  HostTime toHost(int64_t device_ns) const;
  // Host nanoseconds per device nanosecond.
  double rate() const noexcept {
    return 1.0 + drift_;
  }

 private:
  void findDrift();

  std::deque<ClockAnchor> anchors_; // the latest ones
  double drift_ = 0.0;
  double drift_error_ = kMaxDrift;
};

// Compares a device's clock with the host's: records events on an idle stream,
// and notes when the host sees them done. Not thread-safe.
class ClockKeeper {
 public:
  static constexpr uint64_t kEveryNs = 1'000'000'000;
  static constexpr uint64_t kPatienceNs = 1'000'000'000;

  explicit ClockKeeper(Device& device);

  // Compares the clocks if that is due: once a second, for some 50 us of the
  // caller's time. Does not wait for a busy device; a later call takes its
  // answer. The first anchor determines all times until the next anchor, and
  // times must not jump. So for up to kPatienceNs only an anchor with a small
  // error bound is accepted as the first, unless `hurried`. Returns the anchor
  // if one was added.
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
  // The narrowest anchor so far, until a first anchor is accepted.
  std::optional<ClockAnchor> first_;
  uint64_t first_ns_ = 0; // begin of the search for the first anchor
  // The last event that was seen to be done: times of other events are measured
  // from it.
  std::unique_ptr<Device::Event> reference_;
  int64_t reference_ns_ = 0;
  bool answered_ = false;
};

} // namespace commprof
