// Measures what happens on the streams of one device, and never waits for the
// device. Marks are put on streams and are read later, when the device has
// passed them. A mark's time goes into a record, converted to CLOCK_MONOTONIC.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/record.h"
#include "device/device.h"
#include "device/device_clock.h"

namespace commprof {

// Thread-safe. Memory is bounded: records that do not fit are dropped, and the
// recorder counts them.
class DeviceTimeline {
 public:
  static constexpr size_t kMaxMarks = 4096;
  static constexpr size_t kMaxStreams = 64;

  using Mark = uint32_t;
  static constexpr Mark kNoMark = UINT32_MAX;
  using Sink = std::function<void(const Record&)>;

  // `sink` is called with the finished records, on the thread that polls.
  DeviceTimeline(std::unique_ptr<Device> device, uint32_t index, Sink sink);

  Device& device() noexcept {
    return *device_;
  }

  // Facts that the caller knows. They save calls of the device's runtime.
  struct Known {
    bool captures_nothing = false; // the stream is not captured into a graph
    bool is_current = false; // the device is the calling thread's current one
  };
  // Puts a mark at the present end of the stream. Pass it to moment(),
  // stretch() or forget(). Returns kNoMark if there is no room, the device
  // failed, or the stream is being captured into a graph; these functions
  // ignore kNoMark.
  Mark mark(int64_t stream, Known known) noexcept;
  Mark mark(int64_t stream) noexcept {
    return mark(stream, Known());
  }
  Mark mark() noexcept; // puts a mark on the thread's current stream
  // Makes poll() write the record, with the mark's time as `timestamp_ns`.
  void moment(const Record& record, Mark at) noexcept;
  // Like moment() with the mark `begin`. The record also gets the time of `end`
  // as `value`, the stream of `end` as bytes_out and the device as seq. If
  // `ends` is true, an operation ran from `begin` to `end`, and records of the
  // operation's begin and end are written too.
  void stretch(
      const Record& record,
      Mark begin,
      Mark end,
      bool ends = false) noexcept;
  void forget(Mark mark) noexcept;

  // Writes the records whose marks the device has passed. Querying an event
  // breaks a graph capture of another thread, unless the calling thread is
  // `shielded` (see device_poller.h). Does nothing while this thread captures a
  // graph or another thread polls. `hurried`: see ClockKeeper::keep(); also
  // implied if half of the marks are taken.
  void poll(bool shielded = false, bool hurried = false) noexcept;
  // Polls, unless a shielded thread of commprof polls the device. Call it when
  // a collective is issued, and at steps.
  void pollUnlessElsewhere() noexcept {
    if (!polled_elsewhere_.load(std::memory_order_relaxed)) {
      poll();
    }
  }
  void setPolledElsewhere() noexcept {
    polled_elsewhere_ = true;
  }
  // True if no record of the stream is pending.
  bool idle(int64_t stream) noexcept;
  // Polls until no record is pending, or for `limit_ns`. Returns the number of
  // pending records.
  size_t drain(uint64_t limit_ns, bool shielded = false) noexcept;
  // Drops the pending records when their trace is closed. Returns their number.
  size_t clear() noexcept;

  // Returns the timeline for steps and phases. It belongs to the device of the
  // process's first collective with data. Before this collective, the device of
  // a barrier is used; before a barrier, the result is null. A mark belongs to
  // the timeline that made it.
  static DeviceTimeline* main() noexcept {
    return main_.load(std::memory_order_acquire);
  }
  static void setMain(DeviceTimeline* timeline) noexcept {
    main_.store(timeline, std::memory_order_release);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Pending {
    Record record;
    Mark begin = kNoMark; // kNoMark: this is a moment
    Mark end = kNoMark;
    bool ends = false; // see stretch()
    uint32_t next = kNone; // next entry in its queue or in the free list
  };
  // Pending records of one stream, whose marks the device passes in order.
  struct Queue {
    int64_t stream = 0;
    uint32_t head = kNone;
    uint32_t tail = kNone;
  };

  void put(const Record& record, Mark begin, Mark end, bool ends) noexcept;
  Queue* queueLocked(int64_t stream) noexcept;
  void dropLocked(uint32_t pending) noexcept;
  bool halfTaken() noexcept;
  bool resolveFirst(Queue& queue);
  void write(const Pending& done);
  void write(const ClockAnchor& anchor);

  const std::unique_ptr<Device> device_;
  const uint32_t index_;
  const Sink sink_;
  std::atomic<bool> polled_elsewhere_{false};

  std::mutex poll_mutex_; // guards the next two fields; taken before mutex_
  ClockKeeper clock_;
  // Largest error bound of the times converted since the last anchor.
  uint64_t largest_error_ns_ = 0;

  // Indexed by mark. Only the holder of a mark uses the mark's event.
  std::array<std::unique_ptr<Device::Event>, kMaxMarks> events_;
  std::array<int64_t, kMaxMarks> streams_{};

  // Guards all fields below; never held during a call of the device.
  std::mutex mutex_;
  std::vector<Mark> free_marks_;
  std::vector<Pending> pending_;
  uint32_t free_pending_ = kNone;
  std::array<Queue, kMaxStreams> queues_;
  size_t queue_count_ = 0;
  size_t pending_count_ = 0;

  static std::atomic<DeviceTimeline*> main_;
};

} // namespace commprof
