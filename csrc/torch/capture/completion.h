// Records when operations are complete.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "core/record.h"
#include "torch/device/device_events.h"

namespace commprof {

// Records that the operation is complete now.
void recordEnd(uint64_t op_id, Op op, bool failed);

// Times the completion of the Work in `result`, which no other code holds yet,
// and replaces it by a TimedWork, which also times waits.
void watch(c10::IValue& result, const Record& issue, const DeviceOp& on);

// All operations that this thread issues on a device between beginCoalescing()
// and endCoalescing() are launched together by the backend (c10d's start and
// end of coalescing). The Work of the end stands for all of them: its
// completion, if it has a future (NCCL's has none), is theirs, and a wait for
// it is a wait for the last of them. A null Work stays null.
void beginCoalescing();
c10::intrusive_ptr<c10d::Work> endCoalescing(
    c10::intrusive_ptr<c10d::Work> work);
// Call instead of endCoalescing() if the backend failed.
void abandonCoalescing();
// True if this thread is between begin and end.
bool coalescing() noexcept;

} // namespace commprof
