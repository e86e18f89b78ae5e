// Records when operations are complete.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "core/record.h"
#include "torch/device/device_events.h"

namespace commprof {

// Records that the operation is complete: now or, if a wait for it returned
// earlier, at that time.
void recordEnd(uint64_t op_id, Op op, bool failed);

// Replaces the Work in `result` by a TimedWork, and arranges to record the
// Work's completion. No other code may hold `result` yet.
void watch(c10::IValue& result, const Record& issue, const DeviceOp& on);

// c10d's start and end of coalescing. Between the two calls, this thread issues
// operations on a device, which the backend launches together. endCoalescing()
// returns a wrapper of `work`, the Work of all these operations; null if `work`
// is null. A wait for the wrapper counts as a wait for the last operation.
void beginCoalescing();
c10::intrusive_ptr<c10d::Work> endCoalescing(
    c10::intrusive_ptr<c10d::Work> work);
// Called instead of endCoalescing() if the backend failed.
void abandonCoalescing();
// True if this thread is between beginCoalescing() and endCoalescing().
bool coalescing() noexcept;

} // namespace commprof
