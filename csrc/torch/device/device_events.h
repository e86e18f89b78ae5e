// Collectives on a device: c10's generic streams and timed events for
// core/device_timeline.h. Nothing here knows CUDA, and on a CPU nothing of it
// runs.
//
// Of each operation are marked: when the stream that issued it came to it; when
// its result was there; and each time a stream was made to wait for it, the
// stream before and after that. COMMPROF_DEVICE_EVENTS=off leaves all of it
// out.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <optional>

#include "core/device/device_timeline.h"
#include "core/record.h"

namespace commprof {

// Of a device with a collective. Null where its backend has no timed events or
// cannot make streams, for a second type of device, and while the current
// stream is captured into a graph, in which nothing must be marked.
DeviceTimeline* deviceTimeline(c10::Device device) noexcept;
// The device that the calling thread works on, of a type with streams.
c10::Device currentDevice(c10::DeviceType type) noexcept;

// Around the call that issues. Operations that run in the caller's own stream
// (async_op=False) hold it up there and then: that is a wait too.
DeviceTimeline::Mark beginIssue(DeviceTimeline& timeline) noexcept;
void endIssue(
    DeviceTimeline& timeline,
    const Record& issue,
    DeviceTimeline::Mark begin,
    bool in_stream) noexcept;

// Of an issue what its completion needs.
struct IssuedOp {
  uint64_t op_id;
  uint32_t group;
  uint32_t peer;
  Op op;
};

// Call when the future is completed, which on a device means that the operation
// has been launched.
void markCompletion(
    DeviceTimeline& timeline,
    const IssuedOp& issued,
    const c10::ivalue::Future& future) noexcept;

// Around a call that makes the current stream wait for the operation.
class DeviceWait {
 public:
  DeviceWait(DeviceTimeline* timeline, uint64_t op_id, Op op) noexcept;
  ~DeviceWait();
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

 private:
  DeviceTimeline* const timeline_; // null: nothing is marked
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
