// Interface of a device with streams, as DeviceTimeline needs it.
#pragma once

#include <cstdint>
#include <memory>

namespace commprof {

// A device and its timed events. Several threads may call it at the same time,
// but not for the same event. Functions may throw, and do not wait for the
// device.
class Device {
 public:
  struct Event {
    virtual ~Event() = default;
  };
  virtual ~Device() = default;

  // Makes this device the thread's current device. Pass the result to leave().
  // If another device is current, other functions may create a context on that
  // device.
  virtual int enter() {
    return 0;
  }
  virtual void leave(int) noexcept {}
  virtual bool isCurrent() const {
    return true;
  }

  virtual int64_t currentStream() const = 0;
  // Returns a stream on which nothing else runs.
  virtual int64_t newStream() = 0;
  // True if work on the stream is captured into a graph instead of run.
  virtual bool capturing(int64_t stream) const = 0;
  virtual std::unique_ptr<Event> newEvent() = 0;
  // May be called again for the same event. The last call determines its time.
  virtual void record(Event& event, int64_t stream) = 0;
  virtual bool done(const Event& event) const = 0;
  // Time between two events that are done; negative if `to` came first.
  virtual double elapsedNs(const Event& from, const Event& to) const = 0;
};

// Makes a device the current one while this object lives.
class OnDevice {
 public:
  explicit OnDevice(Device& device)
      : device_(device), before_(device.enter()) {}
  ~OnDevice() {
    device_.leave(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Device& device_;
  const int before_;
};

} // namespace commprof
