#include "core/phase_marker.h"

#include <algorithm>

#include "base/clock.h"
#include "core/recorder.h"
#include "device/device_timeline.h"

namespace commprof {

namespace {

// The outermost open marker of a thread.
struct Open {
  const PhaseMarker* marker; // compared and never followed: it may be gone
  uint32_t depth; // of the marker inside itself
  uint64_t begin_ns;
  uint32_t samples;
  DeviceTimeline* timeline; // null where no device is used
  DeviceTimeline::Mark device_begin;
};
constinit thread_local Open t_open{};

void forgetOpen() noexcept {
  if (t_open.timeline != nullptr) {
    t_open.timeline->forget(t_open.device_begin);
  }
  t_open = {};
}

// The same boundary or phase, by the stream that the thread works on. The
// host's time tells which record it belongs to, and when it was handed over.
Record onDevice(const Record& on_host, Kind kind) noexcept {
  Record record = on_host;
  record.kind = kind;
  record.bytes_in = record.timestamp_ns;
  record.timestamp_ns = 0;
  record.value = 0;
  return record;
}

// The kernel's count takes some 10 us to read while a model runs: 0.05 % of the
// thread's time at most. While the thread lacks a core for a share of its time
// that matters, what it lacks is told phase by phase, for 0.4 %.
constexpr uint64_t kRunDelayIntervalNs = 20'000'000;
constexpr uint64_t kShortIntervalNs = 3'000'000;
constexpr uint64_t kMatters = 32; // one part of so many

// How long the thread could run and had no core since it was last asked.
void recordRunDelay(Recorder& recorder, uint64_t now_ns) noexcept {
  static thread_local uint64_t last_ns = 0;
  static thread_local uint64_t last_delay_ns = 0;
  static thread_local uint64_t interval_ns = kRunDelayIntervalNs;
  if (now_ns - last_ns < interval_ns || recorder.mode() != Mode::kFull) {
    return;
  }
  const uint64_t delay_ns = threadRunDelayNs();
  const uint64_t found_ns =
      last_ns == 0 || delay_ns < last_delay_ns ? 0 : delay_ns - last_delay_ns;
  if (found_ns > 0) {
    Record record;
    record.kind = Kind::kRunDelay;
    record.thread = Recorder::threadId();
    record.timestamp_ns = last_ns;
    record.value = now_ns;
    record.bytes_in = found_ns;
    recorder.push(record);
  }
  interval_ns = found_ns > (now_ns - last_ns) / kMatters ? kShortIntervalNs
                                                         : kRunDelayIntervalNs;
  last_ns = now_ns;
  last_delay_ns = delay_ns;
}

} // namespace

void markStep(uint64_t step, bool ended, uint32_t found) noexcept {
  forgetOpen();
  Recorder& recorder = Recorder::instance();
  if (!recorder.enabled()) {
    return;
  }
  Record record;
  record.kind = Kind::kStep;
  record.op_id = step;
  record.aux = ended ? 1 : 0;
  record.seq = found;
  record.thread = Recorder::threadId();
  record.timestamp_ns = nowNs();
  recorder.push(record);
  if (DeviceTimeline* timeline = DeviceTimeline::main()) {
    timeline->moment(onDevice(record, Kind::kDeviceStep), timeline->mark());
    timeline->pollUnlessElsewhere();
  }
}

PhaseMarker::~PhaseMarker() {
  if (t_open.marker == this) {
    forgetOpen();
  }
}

void PhaseMarker::begin() noexcept {
  if (t_open.marker == nullptr) {
    t_open = {this, 0, nowNs(), 0, nullptr, DeviceTimeline::kNoMark};
    DeviceTimeline* timeline = DeviceTimeline::main();
    if (timeline != nullptr && Recorder::instance().enabled()) {
      t_open.timeline = timeline;
      t_open.device_begin = timeline->mark();
    }
  }
  if (t_open.marker == this) {
    ++t_open.depth;
  }
}

void PhaseMarker::end(uint32_t samples) noexcept {
  if (t_open.marker != nullptr && t_open.samples != kSamplesUnknown) {
    const uint64_t sum = uint64_t{t_open.samples} + samples;
    t_open.samples = uint32_t(std::min<uint64_t>(sum, kSamplesUnknown));
  }
  if (t_open.marker != this || --t_open.depth > 0) {
    return;
  }
  Recorder& recorder = Recorder::instance();
  if (!recorder.enabled()) {
    forgetOpen();
    return;
  }
  const Open done = t_open;
  t_open = {};
  Record record;
  record.kind = Kind::kPhase;
  record.aux = phase_;
  record.thread = Recorder::threadId();
  record.seq = done.samples;
  record.timestamp_ns = done.begin_ns;
  record.value = nowNs();
  recorder.push(record);
  recordRunDelay(recorder, record.value);
  if (done.timeline != nullptr) {
    done.timeline->stretch(
        onDevice(record, Kind::kDevicePhase),
        done.device_begin,
        done.timeline->mark());
  }
}

double recordCostNs(uint64_t count) {
  static Ring& ring = *new Ring("", 1 << 10, 1); // reused by every call
  const uint64_t begin = nowNs();
  for (uint64_t i = 0; i < count; ++i) {
    Record record;
    record.kind = Kind::kEnd;
    record.thread = Recorder::threadId();
    record.timestamp_ns = nowNs();
    ring.push(record);
    ring.commit(ring.peek([](const Record*, uint64_t) {}));
  }
  return double(nowNs() - begin) / double(count ? count : 1);
}

} // namespace commprof
