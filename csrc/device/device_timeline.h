// Times what happens on the streams of one device without ever waiting for it:
// marks are put on streams, and looked at later, when the device has passed
// them. A mark's time goes into a record, moved to CLOCK_MONOTONIC.
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

// Of one device. Any thread. Memory is bounded: what finds no room is dropped
// and counted by the recorder.
class DeviceTimeline {
 public:
  static constexpr size_t kMaxMarks = 4096;
  static constexpr size_t kMaxStreams = 64;

  using Mark = uint32_t;
  static constexpr Mark kNoMark = UINT32_MAX;
  using Sink = std::function<void(const Record&)>;

  // `sink` takes the finished records, from the thread that polls.
  DeviceTimeline(std::unique_ptr<Device> device, uint32_t index, Sink sink);

  Device& device() noexcept {
    return *device_;
  }

  // What the caller knows already: asking costs a call of the device's runtime.
  struct Known {
    bool captures_nothing = false; // the stream is not captured into a graph
    bool is_current = false; // the device is the calling thread's
  };
  // A mark at the present end of the stream, to be handed to one of the next
  // three. kNoMark, which they take too and which records nothing: no room, a
  // device that failed, or a stream that is being captured into a graph.
  Mark mark(int64_t stream, Known known) noexcept;
  Mark mark(int64_t stream) noexcept {
    return mark(stream, Known());
  }
  Mark mark() noexcept; // on the thread's current stream
  // Will write the record with the mark's time as `timestamp_ns`.
  void moment(const Record& record, Mark at) noexcept;
  // As moment(), with the later mark's time as `value`, and as bytes_out the
  // stream that `end` lies on, as seq the device. An operation that ran within
  // the stretch in its stream has its end there: `ends`.
  void stretch(
      const Record& record,
      Mark begin,
      Mark end,
      bool ends = false) noexcept;
  void forget(Mark mark) noexcept;

  // Writes the records whose marks the device has passed. Asking for an event
  // while another thread captures a graph breaks that capture, unless the
  // calling thread is `shielded` (see device_poller.h). Does nothing while
  // this thread captures one, or another one polls. `hurried`: see
  // ClockKeeper::keep; so it is, too, if half of the marks are taken.
  void poll(bool shielded = false, bool hurried = false) noexcept;
  // Where collectives are issued and at steps: for devices that no shielded
  // thread of our own polls.
  void pollUnlessElsewhere() noexcept {
    if (!polled_elsewhere_.load(std::memory_order_relaxed)) {
      poll();
    }
  }
  void setPolledElsewhere() noexcept {
    polled_elsewhere_ = true;
  }
  // Whether everything that was marked on the stream has been seen to be past.
  bool idle(int64_t stream) noexcept;
  // Polls until nothing is left, or for so long; returns what is left.
  size_t drain(uint64_t limit_ns, bool shielded = false) noexcept;
  // Drops what waits: it belongs to a trace that is closed. Returns how many.
  size_t clear() noexcept;

  // The timeline that steps and phases are marked on: that of the device which
  // had the process's first collective on a device. Null until then.
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
    Mark begin = kNoMark; // kNoMark: a moment
    Mark end = kNoMark;
    bool ends = false; // a stretch at whose end its operation ended
    uint32_t next = kNone; // behind it in its queue, or in the free list
  };
  // Marks of one stream are passed in order, so the first one tells.
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

  std::mutex poll_mutex_; // the next two; taken before mutex_
  ClockKeeper clock_;
  uint64_t largest_error_ns_ = 0; // of times since the last anchor

  // An event belongs to who holds its mark, else to the free list.
  std::array<std::unique_ptr<Device::Event>, kMaxMarks> events_;
  std::array<int64_t, kMaxMarks> streams_{};

  std::mutex mutex_; // everything below; never held over a call to the device
  std::vector<Mark> free_marks_;
  std::vector<Pending> pending_;
  uint32_t free_pending_ = kNone;
  std::array<Queue, kMaxStreams> queues_;
  size_t queue_count_ = 0;
  size_t pending_count_ = 0;

  static std::atomic<DeviceTimeline*> main_;
};

} // namespace commprof
