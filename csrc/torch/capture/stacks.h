// Python stacks of the threads that issue operations.
#pragma once

#include "core/record.h"

namespace commprof {

// True if stacks are recorded; costs one relaxed load.
bool stacksEnabled() noexcept;

// Switches the recording of stacks on or off. If `most` is not 0, the recording
// ends after about `most` operations.
void setStacks(bool on, uint32_t most) noexcept;

// Records the stack of the calling thread for the issued operation. Does
// nothing on a thread without Python frames. Acquires the GIL.
void recordStack(const Record& issue);

} // namespace commprof
