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

} // namespace commprof
