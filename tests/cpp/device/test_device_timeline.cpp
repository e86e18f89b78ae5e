#include "device/device_timeline.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "check.h"
#include "core/recorder.h"
#include "trace_file.h"

using namespace commprof;

namespace {

class SimulatedDevice final : public Device {
 public:
  struct Timed final : Event {
    double at_ns = 0;
  };

  explicit SimulatedDevice(double drift = 0.0) : drift_(drift) {}

  double nowNs() const {
    return double(commprof::nowNs() - begin_ns_) * (1.0 + drift_) + kOffsetNs;
  }
  double hostNs(double device_ns) const {
    return double(begin_ns_) + (device_ns - kOffsetNs) / (1.0 + drift_);
  }

  // Returns the time at which the added work ends.
  double run(int64_t stream, double duration_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_[stream] = std::max(busy_[stream], nowNs()) + duration_ns;
    return busy_[stream];
  }
  // Returns for how many ns the stream waits.
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
    // CUDA returns elapsed times as floats in ms.
    return double(float(ns * 1e-6)) * 1e6;
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

constexpr double kMs = 1e6;
constexpr uint64_t kLongNs = 5'000'000'000;

struct Setup {
  SimulatedDevice* device;
  std::vector<Record> records;
  std::vector<Record> clocks;
  std::unique_ptr<DeviceTimeline> timeline;

  explicit Setup(double drift = 0.0) {
    auto made = std::make_unique<SimulatedDevice>(drift);
    device = made.get();
    timeline = std::make_unique<DeviceTimeline>(
        std::move(made), 3, [this](const Record& record) {
          (record.kind == Kind::kDeviceClock ? clocks : records)
              .push_back(record);
        });
  }
};

Record record(Kind kind, uint64_t op_id) {
  Record made;
  made.kind = kind;
  made.op_id = op_id;
  return made;
}

// The time may be off by the error of the anchor, by the drift since the
// anchor, and by 100 ns of rounding.
bool near(const Setup& setup, uint64_t actual_ns, double truth_ns) {
  const Record& anchor = setup.clocks.at(0);
  const double distance = truth_ns - double(anchor.timestamp_ns);
  const double error =
      double(anchor.bytes_in) + DeviceClock::kMaxDrift * std::abs(distance);
  return std::abs(double(actual_ns) - truth_ns) <= error + 100;
}

// The collective takes 40 ms, so that the first poll precedes its end even on a
// busy machine.
void aStretchLastsAsLongAsTheStreamWaits(double drift) {
  Setup setup(drift);
  DeviceTimeline& timeline = *setup.timeline;
  SimulatedDevice& device = *setup.device;
  timeline.moment(record(Kind::kDeviceReady, 7), timeline.mark(1));
  const double ready_ns = device.nowNs();
  const double end_ns = device.run(2, 40 * kMs);
  timeline.moment(record(Kind::kEnd, 7), timeline.mark(2));
  device.run(1, 16 * kMs);
  const auto begin = timeline.mark(1);
  const double stall_ns = device.wait(1, end_ns);
  timeline.stretch(record(Kind::kDeviceWait, 7), begin, timeline.mark(1));

  timeline.poll(false, /*hurried=*/true);
  CHECK_EQ(setup.clocks.size(), 1u);
  CHECK_EQ(setup.clocks.at(0).aux, 3u);
  CHECK(setup.records.size() <= 1);
  CHECK_EQ(timeline.drain(kLongNs), 0u);
  CHECK_EQ(setup.records.size(), 3u);
  for (const Record& made : setup.records) {
    CHECK_EQ(made.op_id, 7u);
    switch (made.kind) {
      case Kind::kDeviceReady:
        CHECK(
            double(made.timestamp_ns) <=
            device.hostNs(ready_ns) + double(setup.clocks[0].bytes_in) + 100);
        break;
      case Kind::kEnd:
        CHECK(near(setup, made.timestamp_ns, device.hostNs(end_ns)));
        break;
      default:
        CHECK(made.kind == Kind::kDeviceWait);
        CHECK(near(setup, made.value, device.hostNs(end_ns)));
        CHECK_EQ(made.bytes_out, 1u);
        CHECK_EQ(made.seq, 3u);
        const double length_ns = double(made.value - made.timestamp_ns);
        // If there is only one anchor, the drift is known to 500 ppm, which is
        // 12 us in 24 ms.
        CHECK(std::abs(length_ns - stall_ns / (1.0 + drift)) < 12100);
    }
  }
}

// Only a hurried poll accepts an inaccurate first comparison of clocks. The
// function returns false, without a check, if the device may have answered in
// time because the thread was held up.
bool firstComparisonWasHeldBack() {
  Setup setup;
  DeviceTimeline& timeline = *setup.timeline;
  // The clock uses the first stream that newStream() returned.
  constexpr int64_t kClockStream = 100;
  timeline.moment(record(Kind::kEnd, 1), timeline.mark(1));
  for (int i = 0; i < 3; ++i) {
    const uint64_t begin_ns = nowNs();
    setup.device->run(kClockStream, 2 * kMs);
    timeline.poll();
    if (nowNs() - begin_ns > 500'000) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  CHECK_EQ(setup.clocks.size(), 0u);
  CHECK_EQ(setup.records.size(), 0u);
  setup.device->run(kClockStream, 1e12);
  timeline.poll(false, /*hurried=*/true);
  CHECK_EQ(setup.clocks.size(), 1u);
  CHECK(setup.clocks.at(0).bytes_in >= 1'000'000u);
  CHECK_EQ(setup.clocks.at(0).bytes_out, 0u);
  CHECK_EQ(setup.records.size(), 1u);
  return true;
}

void theFirstClockComparisonMustBeAccurate() {
  int tries = 0;
  while (!firstComparisonWasHeldBack() && ++tries < 100) {
  }
  CHECK(tries < 100);
}

void streamsAreResolvedIndependently() {
  Setup setup;
  DeviceTimeline& timeline = *setup.timeline;
  setup.device->run(2, 1e12);
  timeline.moment(record(Kind::kEnd, 1), timeline.mark(2));
  timeline.moment(record(Kind::kEnd, 2), timeline.mark(3));
  timeline.moment(record(Kind::kEnd, 3), timeline.mark(3));
  CHECK_EQ(timeline.drain(20'000'000), 1u);
  CHECK_EQ(setup.records.size(), 2u);
  CHECK_EQ(setup.records.at(0).op_id, 2u);
  CHECK_EQ(setup.records.at(1).op_id, 3u);
  CHECK_EQ(timeline.clear(), 1u);
  CHECK_EQ(timeline.drain(0), 0u);
}

void aCapturedStreamGetsNoMarks() {
  Setup setup;
  DeviceTimeline& timeline = *setup.timeline;
  timeline.moment(record(Kind::kEnd, 1), timeline.mark());
  setup.device->captured = 1;
  CHECK_EQ(timeline.mark(), DeviceTimeline::kNoMark);
  timeline.moment(record(Kind::kEnd, 2), timeline.mark());
  timeline.stretch(
      record(Kind::kDeviceWait, 3), timeline.mark(2), timeline.mark(1));
  timeline.poll();
  // A query of an event would break the capture.
  CHECK_EQ(setup.records.size(), 0u);
  setup.device->captured = -1;
  CHECK_EQ(timeline.drain(kLongNs), 0u);
  CHECK_EQ(setup.records.size(), 1u);
}

void memoryIsBounded() {
  const trace_file::Directory directory;
  Recorder& recorder = Recorder::instance();
  recorder.start({directory / "a.trace", "", "{}", 1});
  Setup setup;
  DeviceTimeline& timeline = *setup.timeline;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < DeviceTimeline::kMaxMarks; ++i) {
      timeline.moment(record(Kind::kEnd, i), timeline.mark(1));
    }
    CHECK_EQ(timeline.drain(kLongNs), 0u);
  }
  CHECK_EQ(setup.records.size(), 3 * DeviceTimeline::kMaxMarks);
  CHECK_EQ(setup.device->events_made, int(DeviceTimeline::kMaxMarks) + 2);
  CHECK_EQ(recorder.stats().records_dropped, 0u);

  setup.device->run(1, 1e12);
  for (size_t i = 0; i < DeviceTimeline::kMaxMarks + 5; ++i) {
    timeline.moment(record(Kind::kEnd, i), timeline.mark(1));
  }
  CHECK_EQ(recorder.stats().records_dropped, 5u);
  CHECK_EQ(timeline.clear(), DeviceTimeline::kMaxMarks);
  setup.device->broken = true;
  CHECK_EQ(timeline.mark(), DeviceTimeline::kNoMark);
  CHECK_EQ(recorder.stats().records_dropped, 6u);
  recorder.stop();
}

void queuesAreReused() {
  Setup setup;
  DeviceTimeline& timeline = *setup.timeline;
  const auto streams = int64_t(3 * DeviceTimeline::kMaxStreams);
  for (int64_t stream = 200; stream < 200 + streams; ++stream) {
    timeline.moment(
        record(Kind::kEnd, uint64_t(stream)), timeline.mark(stream));
    CHECK_EQ(timeline.drain(kLongNs), 0u);
  }
  CHECK_EQ(setup.records.size(), size_t(streams));
}

void theClockIsComparedOncePerSecond() {
  Setup setup;
  for (int i = 0; i < 1000; ++i) {
    setup.timeline->poll();
  }
  CHECK_EQ(setup.clocks.size(), 1u);
  CHECK(setup.clocks[0].bytes_in < 1'000'000);
  const timespec pause{1, 50'000'000};
  nanosleep(&pause, nullptr);
  setup.timeline->poll();
  CHECK_EQ(setup.clocks.size(), 2u);
  const double device_ns = double(setup.clocks[1].value);
  const double host_ns =
      double(setup.clocks[1].timestamp_ns - setup.clocks[0].timestamp_ns);
  CHECK(
      std::abs(device_ns - host_ns - double(setup.clocks[0].value)) <=
      double(setup.clocks[0].bytes_in + setup.clocks[1].bytes_in) + 200);
}

void threadsShareATimeline() {
  Setup setup;
  DeviceTimeline& timeline = *setup.timeline;
  std::vector<std::thread> threads;
  for (int64_t stream = 1; stream <= 4; ++stream) {
    threads.emplace_back([&timeline, stream] {
      for (uint64_t i = 0; i < 300; ++i) {
        const auto begin = timeline.mark(stream);
        timeline.stretch(
            record(Kind::kDeviceWait, i), begin, timeline.mark(stream));
        timeline.forget(timeline.mark(stream));
        timeline.poll();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK_EQ(timeline.drain(kLongNs), 0u);
  CHECK_EQ(setup.records.size(), 1200u);
}

} // namespace

int main() {
  aStretchLastsAsLongAsTheStreamWaits(0.0);
  aStretchLastsAsLongAsTheStreamWaits(300e-6);
  theFirstClockComparisonMustBeAccurate();
  streamsAreResolvedIndependently();
  aCapturedStreamGetsNoMarks();
  memoryIsBounded();
  queuesAreReused();
  theClockIsComparedOncePerSecond();
  threadsShareATimeline();
  return check::report();
}
