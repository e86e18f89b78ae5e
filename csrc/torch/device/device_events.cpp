#include "torch/device/device_events.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "core/clock.h"
#include "core/recorder.h"
#include "torch/device/c10_device.h"
#include "torch/device/future_events.h"
#include "torch/device/stream_order.h"

namespace commprof {

namespace {

constexpr uint64_t kDrainNs = 2'000'000'000;
constexpr c10::DeviceIndex kMaxDevices = 64;

struct Entry {
  C10Device* device; // the timeline's
  DeviceTimeline timeline;
  Watchers watchers;
  Behind behind;
  Entry(std::unique_ptr<C10Device> d, c10::DeviceIndex index)
      : device(d.get()),
        timeline(
            std::move(d),
            uint32_t(index),
            [](const Record& record) {
              if (Recorder::instance().started()) {
                Recorder::instance().push(record);
              }
            }),
        watchers(*device) {}
};

struct Table {
  std::mutex mutex;
  std::atomic<Entry*> entries[kMaxDevices] = {};
  bool failed[kMaxDevices] = {};
  // CPU: none yet. Set under the mutex.
  std::atomic<c10::DeviceType> type{c10::DeviceType::CPU};
};

Table& table() {
  static Table* t = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&table()) Table(); });
    return new Table(); // late callbacks may outlive static objects
  }();
  return *t;
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
  const char* setting = std::getenv("COMMPROF_DEVICE_EVENTS");
  const bool off = setting != nullptr && std::string_view(setting) == "off";
  if (off || !kTellsCapture<c10::impl::VirtualGuardImpl>) {
    return nullptr;
  }
  try {
    // Kept for ever: events are to be gone before the device's driver, or not.
    auto* entry = new Entry(std::make_unique<C10Device>(device), index);
    t.type = device.type();
    t.failed[index] = false;
    t.entries[index].store(entry, std::memory_order_release);
    if (DeviceTimeline::main() == nullptr) {
      DeviceTimeline::setMain(&entry->timeline);
    }
    return entry;
  } catch (const std::exception&) {
    return nullptr; // a backend without streams and events
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
    std::abort(); // there is no timeline of another kind
  }
  return *entry;
}

// With one connection all streams wait in one line, and one that waits for a
// collective would hold up those behind it.
bool streamsAreIndependent() noexcept {
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return connections == nullptr || std::string_view(connections) != "1";
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

// Of the device that the stream belongs to. A forked child has none, nor has a
// device without collectives.
Entry* entryOf(StreamOrCurrent stream) noexcept {
  const int64_t index =
      stream ? stream->device : currentDevice(table().type).index();
  return index < 0 || index >= kMaxDevices ? nullptr
                                           : table().entries[index].load();
}

// The thread's stream comes behind it from now on.
void noteBehind(DeviceTimeline& timeline, CollectiveId behind) noexcept {
  try {
    Entry& entry = entryOf(timeline);
    entry.behind.set(entry.device->currentStream(), behind);
  } catch (const std::exception&) { // then waits for it are not seen
  }
}

// Events are waited for on other devices too.
void waitedFor(CollectiveId behind) {
  for (auto& place : table().entries) {
    if (Entry* entry = place.load()) {
      entry->behind.waitedFor(behind.op_id);
    }
  }
}

// Null where nothing is to be marked.
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
    return entry->device->capturing(current) ? nullptr : &entry->timeline;
  } catch (const std::exception&) {
    return nullptr;
  }
}

} // namespace

DeviceTimeline* deviceTimeline(c10::Device device) noexcept {
  Entry* entry = entryOf(device);
  try {
    const bool usable = entry != nullptr &&
        !entry->device->capturing(entry->device->currentStream());
    return usable ? &entry->timeline : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

c10::Device currentDevice(c10::DeviceType type) noexcept {
  try {
    return c10::impl::VirtualGuardImpl(type).getDevice();
  } catch (const std::exception&) {
    return c10::Device(c10::DeviceType::CPU);
  }
}

DeviceTimeline::Mark beginIssue(DeviceTimeline& timeline) noexcept {
  return timeline.mark();
}

void endIssue(
    DeviceTimeline& timeline,
    const Record& issue,
    DeviceTimeline::Mark begin,
    bool in_stream) noexcept {
  if (in_stream) {
    Record wait = recordOf(Kind::kDeviceWait, issue.op_id, issue.op);
    wait.bytes_in = issue.timestamp_ns;
    timeline.stretch(wait, begin, timeline.mark());
    noteBehind(timeline, {issue.op_id, issue.op});
  } else {
    timeline.moment(recordOf(Kind::kDeviceReady, issue.op_id, issue.op), begin);
  }
  timeline.poll();
}

void markCompletion(
    DeviceTimeline& timeline,
    const IssuedOp& issued,
    const c10::ivalue::Future& future) noexcept {
  static const bool independent = streamsAreIndependent();
  const auto& events = eventsOf(future);
  if (!independent || events.empty() || !Recorder::instance().started()) {
    return;
  }
  try {
    Entry& entry = entryOf(timeline);
    const int64_t stream = entry.watchers.streamFor(issued);
    for (const c10::Event& event : events) {
      if (event.device() == entry.device->c10Stream(stream).device()) {
        event.block(entry.device->c10Stream(stream));
      }
    }
    Record end = recordOf(Kind::kEnd, issued.op_id, issued.op);
    end.bytes_in = 0;
    end.flags = kDeviceTime;
    timeline.moment(end, timeline.mark(stream));
  } catch (const std::exception&) {
    Recorder::instance().countDropped();
  }
}

DeviceWait::DeviceWait(DeviceTimeline* timeline, uint64_t op_id, Op op) noexcept
    : timeline_(Recorder::instance().enabled() ? timeline : nullptr) {
  if (timeline_ != nullptr) {
    record_ = recordOf(Kind::kDeviceWait, op_id, op);
    begin_ = timeline_->mark();
  }
}

DeviceWait::~DeviceWait() {
  if (timeline_ != nullptr) {
    timeline_->stretch(record_, begin_, timeline_->mark());
    noteBehind(*timeline_, {record_.op_id, record_.op});
  }
}

CollectiveId lastOnStream(StreamOrCurrent stream) noexcept {
  Entry* entry = entryOf(stream);
  try {
    return entry == nullptr
        ? CollectiveId{}
        : entry->behind.of(
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
      entry->timeline.drain(kDrainNs);
      Recorder::instance().countDropped(entry->timeline.clear());
    }
  }
}

} // namespace commprof
