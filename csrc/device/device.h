// A device with streams, as its timeline needs it.
#pragma once

#include <cstdint>
#include <memory>

namespace commprof {

// A device and its timed events. Any thread, several at once; of one event one
// thread at a time. Calls may throw; none waits for the device.
class Device {
 public:
  struct Event {
    virtual ~Event() = default;
  };
  virtual ~Device() = default;

  // Makes this the thread's current device; what it gives goes to leave().
  // Calls made with another one current would make a context on that.
  virtual int enter() {
    return 0;
  }
  virtual void leave(int) noexcept {}
  virtual bool isCurrent() const {
    return true;
  }

  // Of the calling thread.
  virtual int64_t currentStream() const = 0;
  // A stream that nothing else runs on.
  virtual int64_t newStream() = 0;
  // Whether what is put on the stream becomes part of a graph and does not run.
  virtual bool capturing(int64_t stream) const = 0;
  virtual std::unique_ptr<Event> newEvent() = 0;
  // Again and again: the last one counts.
  virtual void record(Event& event, int64_t stream) = 0;
  virtual bool done(const Event& event) const = 0;
  // Between two events that are done; negative if `to` came first.
  virtual double elapsedNs(const Event& from, const Event& to) const = 0;
};

// Calls for a device while this lives.
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
