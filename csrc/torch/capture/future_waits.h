// Waits for a collective through its future: `work.get_future().wait()`.
//
// c10's Future has no virtual functions, so Python reports the wait
// (commprof/capture/patches/waits.py). This file knows which futures belong to
// a collective: those that Python got from a Work, until they are complete. DDP
// gets the future of each bucket in C++; its waits for such a future cannot be
// reported. A device's future is complete once the collective has been
// launched, so that a wait for it does not block.
//
// Any thread may call these functions.
#pragma once

#include <ATen/core/ivalue.h>
#include <vector>

#include "base/clock.h"
#include "core/blocked_calls.h"
#include "core/record.h"
#include "core/recorder.h"
#include "core/wait_returns.h"

namespace commprof {

// Records for how long a thread was blocked until an operation was complete.
// Placed around the call that blocks. Records the wait even if the call throws.
class WaitTimer {
 public:
  // `is_end`: the end of the wait counts as the operation's completion, because
  // no other record tells when that was.
  WaitTimer(uint64_t op_id, Op op, bool is_end = false) noexcept
      : op_id_(op_id), op_(op), is_end_(is_end) {
    ++waits_.open;
  }
  ~WaitTimer() {
    --waits_.open;
    ++waits_.ended;
    const uint64_t end_ns = end_ns_ != 0 ? end_ns_ : nowNs();
    Recorder& recorder = Recorder::instance();
    if (!recorder.enabled() || (end_ns - begin_ns_ < kBlockedNs && !is_end_)) {
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
  // To be called once the call has returned because the operation is complete.
  void completed() noexcept {
    end_ns_ = nowNs();
    WaitReturns::instance().note(op_id_, end_ns_);
  }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  ThreadWaits& waits_ = ThreadWaits::here();
  const uint64_t begin_ns_ = nowNs();
  uint64_t end_ns_ = 0;
  const uint64_t op_id_;
  const Op op_;
  const bool is_end_;
};

struct AwaitedOp {
  uint64_t op_id;
  Op op;
};

// The operation that the calling thread issued last; op_id 0: none.
inline AwaitedOp& lastIssued() noexcept {
  static thread_local constinit AwaitedOp last{0, Op::kOther};
  return last;
}

// Makes waits for `future` count as waits for `op` until the future is
// complete. Up to 4096 futures at a time are known; more are ignored.
void noteFuture(
    const c10::intrusive_ptr<c10::ivalue::Future>& future,
    AwaitedOp op);

// `child` is a future made from `parents`. Makes waits for `child` count as
// waits for the last parent that belongs to a collective. Does nothing if no
// parent belongs to one.
void followFutures(
    const c10::intrusive_ptr<c10::ivalue::Future>& child,
    const std::vector<c10::intrusive_ptr<c10::ivalue::Future>>& parents);

// If the future belongs to a collective: blocks until it is complete, and
// records the wait. Else returns immediately. Never throws the future's error.
void waitForFuture(c10::ivalue::Future& future);

} // namespace commprof
