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

#include "core/record.h"

namespace commprof {

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
