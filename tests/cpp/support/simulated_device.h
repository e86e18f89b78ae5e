// A device of streams on a clock of its own, which runs while the test does.
// What a stream does takes the time it is told to; every event's time is known.
#pragma once

#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>

#include "base/clock.h"
#include "device/device_timeline.h"

namespace simulated {

class SimulatedDevice final : public commprof::Device {
 public:
  struct Timed final : Event {
    double at_ns = 0;
  };

  // The device's clock is `drift` faster than the host's.
  explicit SimulatedDevice(double drift = 0.0) : drift_(drift) {}

  double nowNs() const {
    return double(commprof::nowNs() - begin_ns_) * (1.0 + drift_) + kOffsetNs;
  }
  // When the host's clock showed the same; the truth of a record's time.
  double hostNs(double device_ns) const {
    return double(begin_ns_) + (device_ns - kOffsetNs) / (1.0 + drift_);
  }

  // Work for the stream; returns when it will be done.
  double run(int64_t stream, double duration_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_[stream] = std::max(busy_[stream], nowNs()) + duration_ns;
    return busy_[stream];
  }
  // The stream waits until then; returns for how long.
  double wait(int64_t stream, double until_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const double from_ns = std::max(busy_[stream], nowNs());
    busy_[stream] = std::max(from_ns, until_ns);
    return busy_[stream] - from_ns;
  }

  int64_t currentStream() const override {
    return current;
  }
  int64_t newStream() override {
    return next_stream_++;
  }
  bool capturing(int64_t stream) const override {
    return stream == captured;
  }
  std::unique_ptr<Event> newEvent() override {
    ++events_made;
    return std::make_unique<Timed>();
  }
  void record(Event& event, int64_t stream) override {
    if (broken) {
      throw std::runtime_error("the device fell off the bus");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    static_cast<Timed&>(event).at_ns = std::max(busy_[stream], nowNs());
  }
  bool done(const Event& event) const override {
    return nowNs() >= static_cast<const Timed&>(event).at_ns;
  }
  double elapsedNs(const Event& from, const Event& to) const override {
    if (!done(from) || !done(to)) {
      throw std::logic_error("asked before it was done");
    }
    const double ns = static_cast<const Timed&>(to).at_ns -
        static_cast<const Timed&>(from).at_ns;
    return double(float(ns * 1e-6)) * 1e6; // CUDA's are floats, in ms
  }

  std::atomic<int64_t> current{1};
  std::atomic<int64_t> captured{-1};
  std::atomic<bool> broken{false};
  std::atomic<int> events_made{0};

 private:
  static constexpr double kOffsetNs = 1e12;
  const uint64_t begin_ns_ = commprof::nowNs();
  const double drift_;
  std::mutex mutex_;
  std::map<int64_t, double> busy_;
  std::atomic<int64_t> next_stream_{100};
};

} // namespace simulated
