// Relation of a device's own time to CLOCK_MONOTONIC, compared repeatedly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "device/device.h"

namespace commprof {

// One moment on both clocks; on the host's it lies between two times.
struct ClockAnchor {
  int64_t device_ns;
  uint64_t earliest_ns; // before the device was asked to mark it
  uint64_t latest_ns; // when the moment was seen to be past
};

struct HostTime {
  uint64_t time_ns;
  uint64_t error_ns; // bound; exact only while the drift does not change
};

// Not thread-safe. The relative rate of the clocks is that of the two anchors
// that determine it best; if none do better, the rates are taken to be equal
// within the most by which a kernel corrects a clock (adjtimex(2)).
class DeviceClock {
 public:
  static constexpr size_t kMaxAnchors = 64;
  static constexpr double kMaxDrift = 500e-6;

  void add(const ClockAnchor& anchor);
  bool known() const noexcept {
    return !anchors_.empty();
  }
  // Converts by the anchor with the smallest error bound. Call when known().
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

  // Compares the clocks if that is due: some 50 us of the caller's time once a
  // second. Does not wait for a busy device; later calls take its answer. The
  // first anchor determines all times until the next one, and times must not
  // jump; so for up to kPatienceNs only a narrow anchor is accepted as the
  // first, unless `hurried`. Returns the anchor if one was added.
  std::optional<ClockAnchor> keep(bool hurried = false);

  bool known() const noexcept {
    return clock_.known();
  }
  // Converts the time of an event that is done. Call when known().
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
  std::optional<ClockAnchor> first_; // the narrowest so far, until one is known
  uint64_t first_ns_ = 0; // when the first anchor was first asked for
  // The last event seen to be done: the times of others are relative to it.
  std::unique_ptr<Device::Event> reference_;
  int64_t reference_ns_ = 0;
  bool answered_ = false;
};

} // namespace commprof
