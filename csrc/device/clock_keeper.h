// Compares a device's clock with the host's now and then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "device/device.h"
#include "device/device_clock.h"

namespace commprof {

// Asks an idle stream for an event and sees when it is there. Not thread-safe.
class ClockKeeper {
 public:
  static constexpr uint64_t kEveryNs = 1'000'000'000;

  explicit ClockKeeper(Device& device);

  // Compares if it is time to: some 50 us of the caller's time once a second. A
  // busy device is not waited for; later calls see when it has answered.
  // Returns the anchor if one was added.
  std::optional<ClockAnchor> keep();

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
  // The last event that answered: the times of others count from it.
  std::unique_ptr<Device::Event> reference_;
  int64_t reference_ns_ = 0;
  bool answered_ = false;
};

} // namespace commprof
