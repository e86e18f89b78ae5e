// Where a device's own time stands on CLOCK_MONOTONIC, compared now and then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "device/device.h"

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

// Asks an idle stream for an event and sees when it is there. Not thread-safe.
class ClockKeeper {
 public:
  static constexpr uint64_t kEveryNs = 1'000'000'000;
  static constexpr uint64_t kPatienceNs = 1'000'000'000;

  explicit ClockKeeper(Device& device);

  // Compares if it is time to: some 50 us of the caller's time once a second. A
  // busy device is not waited for; later calls see when it has answered. The
  // first anchor places all times until the next one, and times must not jump:
  // up to kPatienceNs a narrow one is waited for, unless the caller is
  // `hurried`. Returns the anchor if one was added.
  std::optional<ClockAnchor> keep(bool hurried = false);

  bool known() const noexcept {
    return clock_.known();
  }
  // Of an event that is done. Call when known().
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
  uint64_t first_ns_ = 0; // when that was asked for
  // The last event that answered: the times of others count from it.
  std::unique_ptr<Device::Event> reference_;
  int64_t reference_ns_ = 0;
  bool answered_ = false;
};

} // namespace commprof
