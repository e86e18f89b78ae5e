// When what was issued is complete.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "core/record.h"
#include "torch/device/device_events.h"

namespace commprof {

// It is complete now.
void recordEnd(uint64_t op_id, Op op, bool failed);

// Times the completion of the Work in `result`, which nobody else has seen, and
// puts a TimedWork in its place, so that waits are timed too.
void watch(c10::IValue& result, const Record& issue, const DeviceOp& on);

// What this thread issues on a device between the first two is launched as one
// by the backend (c10d's start and end of coalescing), and the Work of the
// second stands for all of it: its completion, if its future tells one (NCCL's
// has none), is theirs, and who waits for it waits for the last of them. Null
// stays null.
void beginCoalescing();
c10::intrusive_ptr<c10d::Work> endCoalescing(
    c10::intrusive_ptr<c10d::Work> work);
// The backend refused it.
void abandonCoalescing();
// Whether this thread is between the first two.
bool coalescing() noexcept;

} // namespace commprof
