// When what was issued is complete.
#pragma once

#include <ATen/core/ivalue.h>

#include "core/device/device_timeline.h"
#include "core/record.h"

namespace commprof {

// It is complete now.
void recordEnd(uint64_t op_id, Op op, bool failed);

// Times the completion of the Work in `result`, which nobody else has seen, and
// puts a TimedWork in its place, so that waits are timed too. `timeline` is
// null on a CPU.
void watch(c10::IValue& result, const Record& issue, DeviceTimeline* timeline);

} // namespace commprof
