#include "device/device_timeline.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "core/recorder.h"

namespace commprof {

namespace {

void dropped() noexcept {
  Recorder::instance().countDropped();
}

} // namespace

std::atomic<DeviceTimeline*> DeviceTimeline::main_{nullptr};

DeviceTimeline::DeviceTimeline(
    std::unique_ptr<Device> device,
    uint32_t index,
    Sink sink)
    : device_(std::move(device)),
      index_(index),
      sink_(std::move(sink)),
      clock_(*device_) {
  free_marks_.reserve(kMaxMarks);
  pending_.resize(kMaxMarks); // one entry for each mark
  for (uint32_t i = 0; i < kMaxMarks; ++i) {
    free_marks_.push_back(Mark(kMaxMarks - 1 - i));
    pending_[i].next = i + 1 < kMaxMarks ? i + 1 : kNone;
  }
  free_pending_ = 0;
}

DeviceTimeline::Mark DeviceTimeline::mark() noexcept {
  try {
    return mark(device_->currentStream());
  } catch (const std::exception&) {
    dropped();
    return kNoMark;
  }
}

DeviceTimeline::Mark DeviceTimeline::mark(
    int64_t stream,
    Known known) noexcept {
  Mark mark = kNoMark;
  try {
    std::optional<OnDevice> on_device;
    if (!known.is_current) {
      on_device.emplace(*device_);
    }
    if (!known.captures_nothing && device_->capturing(stream)) {
      return kNoMark;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_marks_.empty()) {
        mark = free_marks_.back();
        free_marks_.pop_back();
      }
    }
    if (mark != kNoMark) {
      if (!events_[mark]) {
        events_[mark] = device_->newEvent();
      }
      streams_[mark] = stream;
      device_->record(*events_[mark], stream);
      return mark;
    }
  } catch (const std::exception&) {
    forget(mark);
  }
  dropped();
  return kNoMark;
}

void DeviceTimeline::forget(Mark mark) noexcept {
  if (mark != kNoMark) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_marks_.push_back(mark); // room for the mark is reserved
  }
}

void DeviceTimeline::moment(const Record& record, Mark at) noexcept {
  if (at != kNoMark) {
    put(record, kNoMark, at, false);
  }
}

void DeviceTimeline::stretch(
    const Record& record,
    Mark begin,
    Mark end,
    bool ends) noexcept {
  if (begin != kNoMark && end != kNoMark) {
    put(record, begin, end, ends);
  } else {
    forget(begin);
    forget(end);
  }
}

void DeviceTimeline::put(
    const Record& record,
    Mark begin,
    Mark end,
    bool ends) noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Queue* queue = queueLocked(streams_[end]);
    if (queue != nullptr) {
      // Some entry of pending_ is free: there are as many entries as marks, and
      // each used entry holds a mark.
      const uint32_t place = free_pending_;
      Pending& pending = pending_[place];
      free_pending_ = pending.next;
      pending = {record, begin, end, ends, kNone};
      (queue->head == kNone ? queue->head : pending_[queue->tail].next) = place;
      queue->tail = place;
      ++pending_count_;
      return;
    }
  }
  forget(begin);
  forget(end);
  dropped();
}

DeviceTimeline::Queue* DeviceTimeline::queueLocked(int64_t stream) noexcept {
  Queue* empty = nullptr;
  for (size_t i = 0; i < queue_count_; ++i) {
    if (queues_[i].stream == stream) {
      return &queues_[i];
    }
    empty = queues_[i].head == kNone ? &queues_[i] : empty;
  }
  if (queue_count_ < kMaxStreams) {
    empty = &queues_[queue_count_++];
  }
  if (empty != nullptr) {
    empty->stream = stream;
  }
  return empty;
}

void DeviceTimeline::dropLocked(uint32_t place) noexcept {
  Pending& pending = pending_[place];
  for (const Mark mark : {pending.begin, pending.end}) {
    if (mark != kNoMark) {
      free_marks_.push_back(mark);
    }
  }
  pending.next = free_pending_;
  free_pending_ = place;
  --pending_count_;
}

bool DeviceTimeline::idle(int64_t stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::none_of(
      queues_.begin(),
      queues_.begin() + ptrdiff_t(queue_count_),
      [stream](const Queue& queue) {
        return queue.stream == stream && queue.head != kNone;
      });
}

bool DeviceTimeline::halfTaken() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return free_marks_.size() < kMaxMarks / 2;
}

void DeviceTimeline::poll(bool shielded, bool hurried) noexcept {
  const std::unique_lock<std::mutex> polling(poll_mutex_, std::try_to_lock);
  if (!polling) {
    return;
  }
  try {
    const OnDevice on_device(*device_);
    if (!shielded && device_->capturing(device_->currentStream())) {
      return;
    }
    const bool soon = hurried || (!clock_.known() && halfTaken());
    if (const auto anchor = clock_.keep(soon)) {
      write(*anchor);
    }
    if (!clock_.known()) {
      return;
    }
    for (Queue& queue : queues_) {
      while (resolveFirst(queue)) {
      }
    }
  } catch (const std::exception&) {
    // The device has failed: the program's own calls report it.
  }
}

// Only poll() removes entries from a queue, so the first entry stays the same
// while mutex_ is not held.
bool DeviceTimeline::resolveFirst(Queue& queue) {
  uint32_t place = kNone;
  Pending first;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    place = queue.head;
    if (place == kNone) {
      return false;
    }
    first = pending_[place];
  }
  // On a single stream, the begin always comes before the end.
  const bool apart =
      first.begin != kNoMark && streams_[first.begin] != streams_[first.end];
  if (!device_->done(*events_[first.end]) ||
      (apart && !device_->done(*events_[first.begin]))) {
    return false;
  }
  write(first);
  const std::lock_guard<std::mutex> lock(mutex_);
  queue.head = pending_[place].next;
  dropLocked(place);
  return true;
}

void DeviceTimeline::write(const Pending& done) {
  const Device::Event& end = *events_[done.end];
  const HostTime end_host = clock_.toHost(end);
  const uint64_t end_host_ns = end_host.time_ns;
  largest_error_ns_ = std::max(largest_error_ns_, end_host.error_ns);
  Record record = done.record;
  record.timestamp_ns = end_host_ns;
  if (done.begin != kNoMark) {
    // More exact than the difference of two converted times.
    const double length_ns =
        device_->elapsedNs(*events_[done.begin], end) * clock_.rate();
    record.timestamp_ns =
        end_host_ns - uint64_t(std::max(0LL, std::llround(length_ns)));
    record.value = end_host_ns;
    record.bytes_out = uint64_t(streams_[done.end]);
    record.seq = index_;
  }
  if (done.ends) { // the rank arrived at the operation at the mark `begin`
    Record ready = done.record;
    ready.kind = Kind::kDeviceReady;
    ready.timestamp_ns = record.timestamp_ns;
    sink_(ready);
  }
  sink_(record);
  if (done.ends) {
    Record completed;
    completed.kind = Kind::kEnd;
    completed.op = record.op;
    completed.op_id = record.op_id;
    completed.thread = record.thread;
    completed.flags = kDeviceTime;
    completed.timestamp_ns = end_host_ns;
    sink_(completed);
  }
}

void DeviceTimeline::write(const ClockAnchor& anchor) {
  const uint64_t width_ns = anchor.latest_ns - anchor.earliest_ns;
  Record record;
  record.kind = Kind::kDeviceClock;
  record.thread = Recorder::threadId();
  record.aux = index_;
  record.timestamp_ns = anchor.earliest_ns + width_ns / 2;
  record.bytes_in = (width_ns + 1) / 2;
  record.bytes_out = std::exchange(largest_error_ns_, 0);
  record.value = uint64_t(anchor.device_ns);
  sink_(record);
}

size_t DeviceTimeline::drain(uint64_t limit_ns, bool shielded) noexcept {
  const uint64_t until_ns = nowNs() + limit_ns;
  for (;;) {
    poll(shielded, /*hurried=*/true);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (pending_count_ == 0 || nowNs() >= until_ns) {
        return pending_count_;
      }
    }
    const timespec pause{0, 200'000};
    nanosleep(&pause, nullptr);
  }
}

size_t DeviceTimeline::clear() noexcept {
  const std::lock_guard<std::mutex> polling(poll_mutex_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t left = pending_count_;
  for (Queue& queue : queues_) {
    while (queue.head != kNone) {
      const uint32_t place = queue.head;
      queue.head = pending_[place].next;
      dropLocked(place);
    }
  }
  return left;
}

} // namespace commprof
