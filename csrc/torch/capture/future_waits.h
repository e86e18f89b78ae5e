// Waiting for a collective by hand: `work.get_future().wait()`.
//
// c10's Future has no virtual functions, so Python tells of the wait
// (commprof/capture/patches/waits.py). Here is known which futures are a
// collective's: what a Work handed out, until it is complete. A device's future
// is complete when the collective has been launched: nobody is blocked then.
//
// Any thread may call these.
#pragma once

#include <ATen/core/ivalue.h>
#include <vector>

#include "base/clock.h"
#include "core/record.h"
#include "core/recorder.h"

namespace commprof {

// Records for how long a thread was blocked until an operation was complete.
// Put it around the call that blocks. It records also when the call throws.
class WaitTimer {
 public:
  // `is_end`: nothing else tells when the operation was complete.
  WaitTimer(uint64_t op_id, Op op, bool is_end = false) noexcept
      : op_id_(op_id), op_(op), is_end_(is_end) {}
  ~WaitTimer() {
    const uint64_t end_ns = nowNs();
    Recorder& recorder = Recorder::instance();
    if (!recorder.enabled() || (end_ns - begin_ns_ < kShortestNs && !is_end_)) {
      return;
    }
    Record record;
    record.kind = Kind::kWait;
    record.op = op_;
    record.op_id = op_id_;
    record.thread = Recorder::threadId();
    record.timestamp_ns = begin_ns_;
    record.value = end_ns;
    recorder.push(record);
  }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  // A wait that finds the work done blocks nobody and needs no record.
  static constexpr uint64_t kShortestNs = 1000;

  const uint64_t begin_ns_ = nowNs();
  const uint64_t op_id_;
  const Op op_;
  const bool is_end_;
};

struct AwaitedOp {
  uint64_t op_id;
  Op op;
};

// From now on, until it is complete, who waits for it waits for `op`. Of 4096
// at a time: more of them are not told apart from other futures.
void noteFuture(
    const c10::intrusive_ptr<c10::ivalue::Future>& future,
    AwaitedOp op);

// `child` follows from `parents`. Who waits for it waits for the last of them
// that is a collective's; nothing is noted where none is.
void followFutures(
    const c10::intrusive_ptr<c10::ivalue::Future>& child,
    const std::vector<c10::intrusive_ptr<c10::ivalue::Future>>& parents);

// Blocks until it is complete, and records that, if it is a collective's;
// returns at once if it is none. Never throws what the future holds.
void waitForFuture(c10::ivalue::Future& future);

} // namespace commprof
