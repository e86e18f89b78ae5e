// Records waits for a collective's future: `work.get_future().wait()`.
//
// Python reports the waits (commprof/capture/patches/waits.py), because c10's
// Future has no virtual functions. DDP's waits are not reported, because DDP
// waits in C++.
//
// A device's future is complete once the collective is launched, so a wait for
// this future does not block.
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

// Placed around a call that blocks until an operation is complete. Records the
// wait, even if the call throws; a wait below kBlockedNs only if `is_end`.
class WaitTimer {
 public:
  // `is_end`: the end of the wait counts as the operation's completion.
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
  // Called when the blocking call has returned and the operation is complete.
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
// complete. Does nothing if `future` is noted already, or while 4096 other
// futures are noted.
void noteFuture(
    const c10::intrusive_ptr<c10::ivalue::Future>& future,
    AwaitedOp op);

// `child` is a future made from `parents`. Makes waits for `child` count as
// waits for the last parent that belongs to a collective. Does nothing if no
// parent belongs to a collective.
void followFutures(
    const c10::intrusive_ptr<c10::ivalue::Future>& child,
    const std::vector<c10::intrusive_ptr<c10::ivalue::Future>>& parents);

// If the future belongs to a collective, blocks until the future is complete,
// and records the wait. Otherwise returns immediately. Does not throw the
// future's error.
void waitForFuture(c10::ivalue::Future& future);

} // namespace commprof
