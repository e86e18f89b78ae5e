// Times collectives on devices, with c10's generic streams and timed events.
// Not specific to CUDA.
//
// An operation is marked at its issue, at its completion, and before and after
// each wait of a stream for the operation. Its completion is marked only if the
// backend shows which stream runs the operation (stream_finder.h).
//
// A separate thread reads the marks (device_poller.h). If that could break a
// graph capture, the marks are read when collectives are issued.
// COMMPROF_DEVICE_EVENTS=off disables all marks.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>

#include "core/record.h"
#include "device/device_timeline.h"
#include "torch/device/stream_finder.h"

namespace commprof {

// `type`: a device type with streams. Returns the calling thread's current
// device.
c10::Device currentDevice(c10::DeviceType type) noexcept;

// Device and stream of an operation.
struct DeviceOp {
  // Null if nothing is marked: on a CPU, on a device without streams or timed
  // events, on a second type of device, while the current stream is captured
  // into a graph, if captures cannot be detected, or if marks are disabled.
  DeviceTimeline* timeline = nullptr;
  // True if the operation ran in the caller's own stream. The operation then
  // counts as a wait of this stream.
  bool in_stream = false;
  std::optional<int64_t> stream = {}; // the operation's stream, if known
  // True if the device is the issuing thread's current device.
  bool is_current = false;
};

// Placed around a call that issues an operation on a device.
class DeviceIssue {
 public:
  // `device`: device of the tensors. `in_callers`: true for async_op=False, for
  // which backends may use the caller's stream. `alone`: the call launches no
  // other operation.
  DeviceIssue(
      c10::Device device,
      const Record& issue,
      bool in_callers,
      bool alone) noexcept;
  // Drops the marks if the call threw.
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
  int64_t caller_ = 0; // the issuing stream
  DeviceTimeline::Mark begin_ = DeviceTimeline::kNoMark;
  std::unique_ptr<StreamFinder> finder_;
};

// Marks an operation's completion. Call it after the operation was launched and
// before anything else is launched.
void markCompletion(const DeviceOp& on, uint64_t op_id, Op op) noexcept;

// Returns an object that finds the stream on which this thread launches
// operations. Null if out of memory.
std::unique_ptr<StreamFinder> findStream(DeviceTimeline& timeline) noexcept;

// Placed around a call that makes the current stream wait for an operation. The
// operation must not be captured into a graph.
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

// Identity of a collective.
struct CollectiveId {
  uint64_t op_id = 0; // 0: no collective
  Op op = Op::kOther;
};

// Identity of a stream. A stream's id is unique only within its device.
struct DeviceStream {
  int64_t device;
  int64_t stream;
};
// nullopt: the calling thread's current stream.
using StreamOrCurrent = std::optional<DeviceStream>;

// Returns the last collective that the stream ran or waited for. Returns op_id
// 0 if there is none, or if a StreamWait for the collective began later.
CollectiveId lastOnStream(StreamOrCurrent stream) noexcept;

// Placed around a call that makes `stream` wait for the collective `behind`.
// Recorded only if `stream` is the thread's current stream.
class StreamWait {
 public:
  StreamWait(StreamOrCurrent stream, CollectiveId behind) noexcept;
  StreamWait(const StreamWait&) = delete;
  StreamWait& operator=(const StreamWait&) = delete;

 private:
  const DeviceWait wait_;
};

// Drops the marks of an earlier trace; call it when a trace begins.
void clearDevices() noexcept;
// Waits for each device to reach its last mark, up to two seconds per device.
// Call it before a trace is closed. Marks that are not reached count as
// dropped.
void drainDevices() noexcept;

} // namespace commprof
