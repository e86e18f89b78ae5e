#include "core/phase_marker.h"

#include <algorithm>
#include <mutex>

#include "base/clock.h"
#include "base/host_counts.h"
#include "core/recorder.h"
#include "device/device_timeline.h"

namespace commprof {

namespace {

// The outermost open marker of a thread.
struct Open {
  const PhaseMarker* marker; // compared, never dereferenced: it may be gone
  uint32_t depth; // how often the marker is nested in itself
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

// Returns the device's counterpart of a host record, without times. Its
// bytes_in is the timestamp of `on_host`, which identifies the host record.
Record onDevice(const Record& on_host, Kind kind) noexcept {
  Record record = on_host;
  record.kind = kind;
  record.bytes_in = record.timestamp_ns;
  record.timestamp_ns = 0;
  record.value = 0;
  return record;
}

// Reading the kernel's counts takes about 15 us. That is 0.08 % of a thread's
// time every kRunDelayIntervalNs, and 0.5 % every kShortIntervalNs. The short
// interval is used while the thread often lacks a core or reads pages from
// disk.
constexpr uint64_t kRunDelayIntervalNs = 20'000'000;
constexpr uint64_t kShortIntervalNs = 3'000'000;
constexpr uint64_t kMatters = 32; // a share above 1/kMatters is relevant
// If page faults are this close together, they take at least 2 % of the time.
constexpr uint64_t kFaultNs = 20'000;

// The kernel's counts at the last reading.
struct Counted {
  uint32_t of_thread = 0; // kernel thread id
  uint64_t at_ns = 0;
  uint64_t delay_ns = 0;
  uint64_t helpers_cpu_ns = 0;
  uint64_t throttled_ns = 0;
  uint64_t stall_ns = 0;
  ThreadCounts thread;
};

Record since(const Counted& last, uint64_t now_ns, Kind kind) noexcept {
  Record record;
  record.kind = kind;
  record.thread = Recorder::threadId();
  record.timestamp_ns = last.at_ns;
  record.value = now_ns;
  return record;
}

uint64_t more(uint64_t now, uint64_t before) noexcept {
  return now > before ? now - before : 0;
}

// Records page faults and involuntary switches. Also records throttling by a
// cgroup quota if the thread `lacked` a core, and stalls for memory if the
// thread read pages from disk.
void recordHostCounts(
    Recorder& recorder,
    Counted& last,
    const Counted& now,
    bool lacked) noexcept {
  Record record = since(last, now.at_ns, Kind::kHostCounts);
  const ThreadCounts& before = last.thread;
  const uint64_t minor = more(now.thread.minor_faults, before.minor_faults);
  uint64_t& major = record.*field::kHostCountsMajorFaults;
  major = more(now.thread.major_faults, before.major_faults);
  if (!lacked && major == 0 && minor < (now.at_ns - last.at_ns) / kFaultNs) {
    return;
  }
  record.*field::kHostCountsMinorFaults = uint32_t(minor);
  record.*field::kHostCountsInvoluntarySwitches = uint32_t(
      more(now.thread.involuntary_switches, before.involuntary_switches));
  if (lacked) {
    const uint64_t throttled_ns = throttledNs(now.at_ns);
    record.*field::kHostCountsThrottledNs =
        more(throttled_ns, last.throttled_ns);
    last.throttled_ns = throttled_ns;
  }
  if (major > 0) {
    const uint64_t stall_ns = memoryStallNs();
    // The last reading of the stalls may lie before this interval.
    const uint64_t most_ns = now.at_ns - last.at_ns;
    record.*field::kHostCountsMemoryStallNs =
        std::min(more(stall_ns, last.stall_ns), most_ns);
    last.stall_ns = stall_ns;
  }
  recorder.push(record);
}

// CPU time of all other threads of the process, such as gloo's and commprof's.
uint64_t helpersCpuNs() noexcept {
  const uint64_t mine_ns = threadCpuNs();
  return more(processCpuNs(), mine_ns);
}

// Records for how long the thread was runnable without a core since the last
// reading, and the kernel's other counts for the same time.
void recordRunDelay(Recorder& recorder, uint64_t now_ns) noexcept {
  static thread_local Counted last;
  static thread_local uint64_t interval_ns = kRunDelayIntervalNs;
  // A forked child begins with its parent's counts.
  if (last.of_thread != Recorder::threadId()) {
    last = {};
    last.of_thread = Recorder::threadId();
  }
  if (now_ns - last.at_ns < interval_ns || recorder.mode() != Mode::kFull) {
    return;
  }
  Counted now = last;
  now.at_ns = now_ns;
  now.delay_ns = threadRunDelayNs();
  now.helpers_cpu_ns = helpersCpuNs();
  now.thread = threadCounts();
  if (last.at_ns == 0) {
    now.throttled_ns = throttledNs(now_ns);
    now.stall_ns = memoryStallNs();
    last = now;
    return;
  }
  // The counter is read after now_ns: a delay between now_ns and the reading
  // belongs to the next interval.
  const uint64_t found_ns =
      std::min(more(now.delay_ns, last.delay_ns), now_ns - last.at_ns);
  now.delay_ns = last.delay_ns + found_ns;
  const uint64_t helped_ns = more(now.helpers_cpu_ns, last.helpers_cpu_ns);
  if (found_ns > 0 || helped_ns > 0) {
    Record record = since(last, now_ns, Kind::kRunDelay);
    record.*field::kRunDelayWithoutCoreNs = found_ns;
    record.*field::kRunDelayHelpersCpuNs = helped_ns;
    recorder.push(record);
  }
  const bool lacked = found_ns > (now_ns - last.at_ns) / kMatters;
  recordHostCounts(recorder, last, now, lacked);
  const bool reads = now.thread.major_faults > last.thread.major_faults;
  interval_ns = lacked || reads ? kShortIntervalNs : kRunDelayIntervalNs;
  now.throttled_ns = last.throttled_ns;
  now.stall_ns = last.stall_ns;
  last = now;
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
  static std::mutex mutex; // callers need not hold a GIL
  const std::lock_guard<std::mutex> lock(mutex);
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
