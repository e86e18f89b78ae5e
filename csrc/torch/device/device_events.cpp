#include "torch/device/device_events.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/json_string.h"
#include "core/recorder.h"
#include "torch/device/c10_device.h"
#include "torch/device/device_poller.h"
#include "torch/device/stream_order.h"

namespace commprof {

namespace {

constexpr uint64_t kDrainNs = 2'000'000'000;
constexpr uint64_t kPollEveryNs = 5'000'000;
// Placeholder id for the caller's current stream.
constexpr int64_t kCallersStream = INT64_MIN;
constexpr c10::DeviceIndex kMaxDevices = 64;

struct Entry {
  C10Device* device; // owned by the timeline
  DeviceTimeline timeline;
  QueueStreams streams;
  LastAwaited last_awaited;
  Entry(std::unique_ptr<C10Device> d, c10::DeviceIndex index)
      : device(d.get()),
        timeline(std::move(d), uint32_t(index), [](const Record& record) {
          if (Recorder::instance().started()) {
            Recorder::instance().push(record);
          }
        }) {}

  // Each poll calls the device's runtime, so polls are at least kPollEveryNs
  // apart.
  void pollNowAndThen() noexcept {
    const uint64_t now_ns = nowNs();
    uint64_t next_ns = next_poll_ns_.load(std::memory_order_relaxed);
    if (now_ns >= next_ns &&
        next_poll_ns_.compare_exchange_strong(next_ns, now_ns + kPollEveryNs)) {
      timeline.pollUnlessElsewhere();
    }
  }

 private:
  std::atomic<uint64_t> next_poll_ns_{0};
};

struct Table {
  std::mutex mutex;
  std::atomic<Entry*> entries[kMaxDevices] = {};
  bool failed[kMaxDevices] = {};
  // Device type of all entries; CPU if there is none yet. Set under the mutex.
  std::atomic<c10::DeviceType> type{c10::DeviceType::CPU};
  std::atomic<bool> main_is_final{false};
  ExchangeCaptureMode shield = nullptr;
  // Null if `shield` is null: polls could then break graph captures.
  std::unique_ptr<DevicePoller> poller;
};

Table& table() {
  static Table* t = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&table()) Table(); });
    return new Table(); // late callbacks may outlive static objects
  }();
  return *t;
}

void pollAll() noexcept {
  if (Recorder::instance().started()) {
    for (auto& place : table().entries) {
      if (Entry* entry = place.load()) {
        entry->timeline.poll(/*shielded=*/true);
      }
    }
  }
}

// Called once per process. The poller must end before the exit handlers of the
// device's driver run. Exit handlers run in reverse order of registration, and
// the driver was loaded earlier.
void startPollerLocked(Table& t) {
  t.shield = captureShield(t.type);
  if (t.shield != nullptr) {
    t.poller = std::make_unique<DevicePoller>(t.shield, &pollAll);
    std::atexit([] { table().poller.reset(); });
  }
}

// Steps and phases are marked on the device of the first collective with data.
// A barrier's device counts only until then, because a barrier may come before
// the script has chosen its device.
void noteMain(Entry& entry, Op op) noexcept {
  std::atomic<bool>& is_final = table().main_is_final;
  if (op != Op::kBarrier && !is_final.load() && !is_final.exchange(true)) {
    DeviceTimeline::setMain(&entry.timeline);
  }
}

// Returns the reason why a device has no times, for use in a sentence of the
// report. Null if the device has times.
const char* leftOut(c10::DeviceType type) noexcept {
  const char* setting = std::getenv("COMMPROF_DEVICE_EVENTS");
  const std::string_view wanted = setting == nullptr ? "" : setting;
  if (wanted == "off") {
    return "COMMPROF_DEVICE_EVENTS=off";
  }
  if (!kGuardReportsCapture<c10::impl::VirtualGuardImpl> &&
      !cudaReportsCapture(type)) {
    return "this torch version cannot report whether a stream is captured "
           "into a graph; torch 2.12 and later can";
  }
  if (wanted != "on" && !implementsCaptureQuery(type)) {
    return "its backend does not say whether a stream is captured into a "
           "graph; if no stream is ever captured, set "
           "COMMPROF_DEVICE_EVENTS=on to record times";
  }
  return nullptr;
}

void tellLeftOut(const char* reason) noexcept {
  try {
    Recorder::instance().addDocument(
        BlockType::kMetadata,
        "{\"no_device_times\": " + jsonString(reason) + "}");
  } catch (const std::exception&) { // out of memory: the reason is not recorded
  }
}

Entry* makeEntry(c10::Device device) noexcept {
  Table& t = table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  const c10::DeviceIndex index = device.index();
  const bool other = t.type != c10::DeviceType::CPU && t.type != device.type();
  if (other || t.failed[index] || t.entries[index].load() != nullptr) {
    return other ? nullptr : t.entries[index].load();
  }
  t.failed[index] = true;
  if (const char* reason = leftOut(device.type())) {
    tellLeftOut(reason);
    return nullptr;
  }
  try {
    auto made = std::make_unique<C10Device>(device);
    const OnDevice on_device(*made);
    // The entry is never destroyed: events must not be destroyed after the
    // device's driver.
    auto* entry = new Entry(std::move(made), index);
    if (t.type == c10::DeviceType::CPU) {
      t.type = device.type();
      startPollerLocked(t);
    }
    if (t.poller) {
      entry->timeline.setPolledElsewhere();
    }
    t.failed[index] = false;
    t.entries[index].store(entry, std::memory_order_release);
    if (DeviceTimeline::main() == nullptr) {
      DeviceTimeline::setMain(&entry->timeline);
    }
    return entry;
  } catch (const std::exception&) {
    tellLeftOut("its backend has no streams or no timed events");
    return nullptr;
  }
}

Entry* entryOf(c10::Device device) noexcept {
  if (device.index() < 0 || device.index() >= kMaxDevices) {
    return nullptr;
  }
  Entry* entry = table().entries[device.index()].load();
  return entry != nullptr && device.type() == table().type ? entry
                                                           : makeEntry(device);
}

Entry* findEntry(const DeviceTimeline* timeline) noexcept {
  for (auto& place : table().entries) {
    Entry* entry = place.load();
    if (entry != nullptr && &entry->timeline == timeline) {
      return entry;
    }
  }
  return nullptr;
}

Entry& entryOf(DeviceTimeline& timeline) noexcept {
  Entry* entry = findEntry(&timeline);
  if (entry == nullptr) {
    std::abort(); // every timeline has an entry
  }
  return *entry;
}

Record recordOf(Kind kind, uint64_t op_id, Op op) noexcept {
  Record record;
  record.kind = kind;
  record.op_id = op_id;
  record.op = op;
  record.thread = Recorder::threadId();
  record.bytes_in = nowNs();
  return record;
}

// Returns the entry of the stream's device; null in a forked child and for a
// device without collectives.
Entry* entryOf(StreamOrCurrent stream) noexcept {
  const int64_t index =
      stream ? stream->device : currentDevice(table().type).index();
  return index < 0 || index >= kMaxDevices ? nullptr
                                           : table().entries[index].load();
}

void noteAwaited(DeviceTimeline& timeline, CollectiveId behind) noexcept {
  try {
    Entry& entry = entryOf(timeline);
    entry.last_awaited.set(entry.device->currentStream(), behind);
  } catch (const std::exception&) { // waits for the collective are not recorded
  }
}

// Forgets the collective on all devices, because a stream of any device can
// wait for the collective's event.
void waitedFor(CollectiveId behind) {
  for (auto& place : table().entries) {
    if (Entry* entry = place.load()) {
      entry->last_awaited.waitedFor(behind.op_id);
    }
  }
}

DeviceTimeline* timelineOfWait(
    StreamOrCurrent stream,
    CollectiveId behind) noexcept {
  Entry* entry = entryOf(stream);
  try {
    if (entry == nullptr || behind.op_id == 0) {
      return nullptr;
    }
    const int64_t current = entry->device->currentStream();
    if (stream && stream->stream != current) {
      return nullptr;
    }
    waitedFor(behind);
    const OnDevice on_device(*entry->device);
    return entry->device->capturing(current) ? nullptr : &entry->timeline;
  } catch (const std::exception&) {
    return nullptr;
  }
}

} // namespace

c10::Device currentDevice(c10::DeviceType type) noexcept {
  try {
    return c10::impl::VirtualGuardImpl(type).getDevice();
  } catch (const std::exception&) {
    return c10::Device(c10::DeviceType::CPU);
  }
}

DeviceIssue::DeviceIssue(
    c10::Device device,
    const Record& issue,
    bool in_callers,
    bool alone) noexcept
    : issue_(issue), in_callers_(in_callers) {
  Entry* entry = entryOf(device);
  try {
    if (entry == nullptr) {
      return;
    }
    noteMain(*entry, issue.op);
    op_.is_current = entry->device->isCurrent();
    caller_ = entry->device->currentStream();
    std::optional<OnDevice> on_device;
    if (!op_.is_current) {
      on_device.emplace(*entry->device);
    }
    if (entry->device->capturing(caller_)) {
      return;
    }
    op_.timeline = &entry->timeline;
    begin_ = entry->timeline.mark(caller_, {true, true});
    const uint64_t queue = queueOf(issue.group, issue.aux, issue.op);
    const auto known = entry->streams.find(queue, in_callers);
    op_.stream = known.stream;
    if (known.should_search && alone) {
      finder_ = std::make_unique<StreamFinder>(device);
    }
  } catch (const std::exception&) {
    // The program's own calls report the same error.
  }
}

DeviceIssue::~DeviceIssue() {
  if (op_.timeline != nullptr) {
    op_.timeline->forget(begin_);
  }
}

DeviceOp DeviceIssue::launched() noexcept {
  if (op_.timeline == nullptr) {
    return op_;
  }
  if (finder_) {
    const auto found = finder_->found();
    finder_.reset();
    learn(queueOf(issue_.group, issue_.aux, issue_.op), found);
  }
  op_.in_stream = in_callers_ && op_.stream == kCallersStream;
  if (op_.stream == kCallersStream) {
    op_.stream = caller_;
  }
  markLaunched();
  begin_ = DeviceTimeline::kNoMark;
  return op_;
}

void DeviceIssue::learn(uint64_t queue, std::optional<int64_t> found) noexcept {
  try {
    // If an asynchronous operation ran on the issuing stream, the queue's
    // stream is unknown: the next operation may be issued from another stream.
    if (found == caller_) {
      found = in_callers_ ? std::optional(kCallersStream) : std::nullopt;
    }
    entryOf(*op_.timeline).streams.noteSearch(queue, in_callers_, found);
    op_.stream = found;
  } catch (const std::exception&) { // out of memory: the search is repeated
  }
}

void DeviceIssue::markLaunched() noexcept {
  DeviceTimeline& timeline = *op_.timeline;
  const bool stream_known = op_.stream.has_value();
  if (op_.in_stream || (in_callers_ && !stream_known)) {
    Record wait = recordOf(Kind::kDeviceWait, issue_.op_id, issue_.op);
    wait.bytes_in = issue_.timestamp_ns;
    const auto end = timeline.mark(caller_, {true, op_.is_current});
    timeline.stretch(wait, begin_, end, op_.in_stream);
    noteAwaited(timeline, {issue_.op_id, issue_.op});
  } else {
    timeline.moment(
        recordOf(Kind::kDeviceReady, issue_.op_id, issue_.op), begin_);
  }
  entryOf(timeline).pollNowAndThen();
}

void markCompletion(const DeviceOp& on, uint64_t op_id, Op op) noexcept {
  if (!on.stream || on.in_stream || !Recorder::instance().started()) {
    return;
  }
  Record end = recordOf(Kind::kEnd, op_id, op);
  end.bytes_in = 0;
  end.flags = kDeviceTime;
  on.timeline->moment(
      end, on.timeline->mark(*on.stream, {true, on.is_current}));
}

std::unique_ptr<StreamFinder> findStream(DeviceTimeline& timeline) noexcept {
  try {
    return std::make_unique<StreamFinder>(
        entryOf(timeline).device->c10Stream(0).device());
  } catch (const std::exception&) {
    return nullptr;
  }
}

DeviceWait::DeviceWait(DeviceTimeline* timeline, uint64_t op_id, Op op) noexcept
    : timeline_(Recorder::instance().enabled() ? timeline : nullptr) {
  if (timeline_ == nullptr) {
    return;
  }
  record_ = recordOf(Kind::kDeviceWait, op_id, op);
  try {
    known_ = {true, timeline_->device().isCurrent()};
    stream_ = timeline_->device().currentStream();
    begin_ = timeline_->mark(stream_, known_);
  } catch (const std::exception&) { // nothing is marked
  }
}

DeviceWait::~DeviceWait() {
  if (timeline_ != nullptr && begin_ != DeviceTimeline::kNoMark) {
    timeline_->stretch(record_, begin_, timeline_->mark(stream_, known_));
    noteAwaited(*timeline_, {record_.op_id, record_.op});
  }
}

CollectiveId lastOnStream(StreamOrCurrent stream) noexcept {
  Entry* entry = entryOf(stream);
  try {
    return entry == nullptr
        ? CollectiveId{}
        : entry->last_awaited.of(
              stream ? stream->stream : entry->device->currentStream());
  } catch (const std::exception&) {
    return {};
  }
}

StreamWait::StreamWait(StreamOrCurrent stream, CollectiveId behind) noexcept
    : wait_(timelineOfWait(stream, behind), behind.op_id, behind.op) {}

void clearDevices() noexcept {
  for (auto& place : table().entries) {
    if (Entry* entry = place.load()) {
      entry->timeline.clear();
    }
  }
}

void drainDevices() noexcept {
  if (!Recorder::instance().started()) {
    return;
  }
  for (auto& place : table().entries) {
    if (Entry* entry = place.load()) {
      const Shielded shielded(table().shield);
      entry->timeline.drain(kDrainNs, table().shield != nullptr);
      Recorder::instance().countDropped(entry->timeline.clear());
    }
  }
}

} // namespace commprof
