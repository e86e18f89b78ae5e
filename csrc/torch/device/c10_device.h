// Implements the Device of device/device_timeline.h with c10's generic
// interface.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>

#include "device/device_timeline.h"
#include "torch/device/cuda_capture.h"

namespace commprof {

// Priority of commprof's own streams. No other code uses streams of this
// priority: torch has one pool of streams for each priority, and the program
// and NCCL use other pools.
inline constexpr int kUnusualPriority = -2;

// A mark on a stream that is captured into a graph would break the capture.
// Device guards of torch before 2.12 cannot report a capture, but CUDA can. If
// captures cannot be detected, no device events are recorded.
template <class Guard>
inline constexpr bool kGuardReportsCapture =
    requires(const Guard& guard, c10::Stream s) { guard.isStreamCapturing(s); };
// True if a device's own guard implements isStreamCapturing(). The function of
// torch's base class always returns false. May be wrongly true if the
// function's symbol is hidden.
bool implementsCaptureQuery(c10::DeviceType type) noexcept;
template <class Guard>
bool isCapturing(const Guard& guard, c10::Stream stream) {
  if constexpr (kGuardReportsCapture<Guard>) {
    return guard.isStreamCapturing(stream);
  } else {
    return isCapturedByCuda(stream);
  }
}

class C10Device final : public Device {
 public:
  explicit C10Device(c10::Device device)
      : guard_(device.type()), device_(device) {}

  // Like c10::OptionalDeviceGuard.
  int enter() override {
    const c10::Device before = guard_.exchangeDevice(device_);
    return before == device_ ? kSame : before.index();
  }
  void leave(int before) noexcept override {
    if (before != kSame) {
      guard_.uncheckedSetDevice(
          c10::Device(device_.type(), c10::DeviceIndex(before)));
    }
  }
  bool isCurrent() const override {
    return guard_.getDevice() == device_;
  }
  int64_t currentStream() const override {
    return guard_.getStream(device_).id();
  }
  int64_t newStream() override {
    try {
      return guard_.getNewStream(device_, kUnusualPriority).id();
    } catch (const c10::Error&) { // a backend without priorities
      return guard_.getNewStream(device_).id();
    }
  }
  bool capturing(int64_t stream) const override {
    return isCapturing(guard_, c10Stream(stream));
  }
  std::unique_ptr<Event> newEvent() override {
    return std::make_unique<Timed>(device_.type());
  }
  void record(Event& event, int64_t stream) override {
    of(event).record(c10Stream(stream));
  }
  bool done(const Event& event) const override {
    return of(event).query();
  }
  double elapsedNs(const Event& from, const Event& to) const override {
    return of(from).elapsedTime(of(to)) * 1e6;
  }
  c10::Stream c10Stream(int64_t id) const {
    return c10::Stream(c10::Stream::UNSAFE, device_, id);
  }

 private:
  // An event with timing, which the flag requests.
  struct Timed final : Event {
    c10::Event event;
    explicit Timed(c10::DeviceType type)
        : event(type, c10::EventFlag::BACKEND_DEFAULT) {}
  };
  static c10::Event& of(Event& event) {
    return static_cast<Timed&>(event).event;
  }
  static const c10::Event& of(const Event& event) {
    return static_cast<const Timed&>(event).event;
  }

  static constexpr int kSame = -2;

  const c10::impl::VirtualGuardImpl guard_;
  const c10::Device device_;
};

} // namespace commprof
