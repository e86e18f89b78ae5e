// Collectives on a device: c10's generic streams and timed events for
// core/device_timeline.h. Nothing here knows CUDA, and on a CPU nothing of it
// runs.
//
// Of each operation are marked: when the stream that issued it came to it; when
// its result was there; and each time a stream was made to wait for it, the
// stream before and after that. The result is marked on the stream that runs
// the operation, if its backend tells which one that is (stream_finder.h).
//
// Marks are looked at from a thread of our own where that can break no graph
// capture (capture_shield.h), else where collectives are issued.
// COMMPROF_DEVICE_EVENTS=off leaves all of it out.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>

#include "core/record.h"
#include "device/device_timeline.h"
#include "torch/device/stream_finder.h"

namespace commprof {

// The device that the calling thread works on, of a type with streams.
c10::Device currentDevice(c10::DeviceType type) noexcept;

// An operation as its device has it.
struct DeviceOp {
  // Null on a CPU, where the device's backend has no timed events or cannot
  // make streams, for a second type of device, and while the current stream is
  // captured into a graph, in which nothing must be marked.
  DeviceTimeline* timeline = nullptr;
  // It ran in the caller's own stream, which it held up there and then: that is
  // a wait too, and nothing waits for it later.
  bool in_stream = false;
  std::optional<int64_t> stream = {}; // where it runs, if its backend told
  bool is_current = false; // the device is that of the thread that issues
};

// Around the call that issues on a device.
class DeviceIssue {
 public:
  // `device` is the tensors'; `in_callers`: async_op=False, for which backends
  // may use the caller's stream; `alone`: what it launches is its own.
  DeviceIssue(
      c10::Device device,
      const Record& issue,
      bool in_callers,
      bool alone) noexcept;
  // A call that threw leaves nothing.
  ~DeviceIssue();
  DeviceIssue(const DeviceIssue&) = delete;
  DeviceIssue& operator=(const DeviceIssue&) = delete;

  DeviceOp launched() noexcept;

 private:
  void markLaunched() noexcept;
  void learn(uint64_t queue, std::optional<int64_t> found) noexcept;

  const Record issue_;
  const bool in_callers_;
  DeviceOp op_;
  int64_t caller_ = 0; // the stream that issues
  DeviceTimeline::Mark begin_ = DeviceTimeline::kNoMark;
  std::unique_ptr<StreamFinder> finder_;
};

// Call when the operation has been launched, and nothing else behind it.
void markCompletion(const DeviceOp& on, uint64_t op_id, Op op) noexcept;

// While it lives, finds where this thread's launches run. Null without memory.
std::unique_ptr<StreamFinder> findStream(DeviceTimeline& timeline) noexcept;

// Around a call that makes the current stream wait for the operation, which was
// not captured into a graph.
class DeviceWait {
 public:
  DeviceWait(DeviceTimeline* timeline, uint64_t op_id, Op op) noexcept;
  ~DeviceWait();
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

 private:
  DeviceTimeline* const timeline_; // null: nothing is marked
  int64_t stream_ = 0;
  DeviceTimeline::Known known_;
  DeviceTimeline::Mark begin_ = DeviceTimeline::kNoMark;
  Record record_;
};

// A collective.
struct CollectiveId {
  uint64_t op_id = 0; // 0: none
  Op op = Op::kOther;
};

// One of a device's streams: ids begin anew on each device.
struct DeviceStream {
  int64_t device;
  int64_t stream;
};
// None: the one that the calling thread works on.
using StreamOrCurrent = std::optional<DeviceStream>;

// What the stream waited for last, or ran itself, and nobody waited for by
// StreamWait yet: an event that is put on it now comes behind that.
CollectiveId lastOnStream(StreamOrCurrent stream) noexcept;

// Around a call that makes `stream` wait for an event behind a collective. It
// counts if the thread works on that stream.
class StreamWait {
 public:
  StreamWait(StreamOrCurrent stream, CollectiveId behind) noexcept;
  StreamWait(const StreamWait&) = delete;
  StreamWait& operator=(const StreamWait&) = delete;

 private:
  const DeviceWait wait_;
};

// A trace begins; what was left of another one goes.
void clearDevices() noexcept;
// Before a trace is closed: gives the devices some time, two seconds at most,
// to reach the last marks. What they do not reach counts as dropped.
void drainDevices() noexcept;

} // namespace commprof
