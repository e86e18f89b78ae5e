// Records when operations are complete.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "core/record.h"
#include "torch/device/device_events.h"

namespace commprof {

// Records that the operation is complete now.
void recordEnd(uint64_t op_id, Op op, bool failed);

// Records the completion of the Work in `result`, which no other code holds
// yet. Replaces the Work by a TimedWork, which also times waits.
void watch(c10::IValue& result, const Record& issue, const DeviceOp& on);

// beginCoalescing() and endCoalescing() are c10d's start and end of coalescing.
// Between the two calls, this thread issues operations on a device; the backend
// launches all of them together. endCoalescing() returns a Work that represents
// all of these operations. If this Work has a future (a Work of NCCL has none),
// the operations are complete when the future is. A wait for the Work counts as
// a wait for the last operation. A null Work stays null.
void beginCoalescing();
c10::intrusive_ptr<c10d::Work> endCoalescing(
    c10::intrusive_ptr<c10d::Work> work);
// Called instead of endCoalescing() if the backend failed.
void abandonCoalescing();
// True if this thread is between beginCoalescing() and endCoalescing().
bool coalescing() noexcept;

} // namespace commprof
